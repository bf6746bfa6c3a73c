/* Addresses: IPv4 and IPv6 alike, as one kind of endpoint. */
#include "sockets.h"

#include <arpa/inet.h>
#include <string.h>

bool is_v4(const struct endpoint *endpoint) { return IN6_IS_ADDR_V4MAPPED(&endpoint->ip); }

uint32_t v4(const struct endpoint *endpoint) {
  uint32_t ip;
  memcpy(&ip, endpoint->ip.s6_addr + 12, sizeof ip);
  return ntohl(ip);
}

struct endpoint v4_endpoint(uint32_t ip, uint16_t port) {
  struct endpoint endpoint = {.port = port};
  uint32_t ordered = htonl(ip);
  memset(endpoint.ip.s6_addr + 10, 0xff, 2);
  memcpy(endpoint.ip.s6_addr + 12, &ordered, sizeof ordered);
  return endpoint;
}

bool same_endpoint(const struct endpoint *one, const struct endpoint *other) {
  return one->port == other->port && memcmp(&one->ip, &other->ip, sizeof one->ip) == 0;
}

bool within(const struct network *network, uint32_t ip) { return network->first <= ip && ip <= network->last; }

bool parse_address(const void *address, size_t size, struct endpoint *endpoint) {
  struct sockaddr_in in;
  struct sockaddr_in6 in6;
  sa_family_t family;
  if (size < sizeof family) return false;
  memcpy(&family, address, sizeof family);
  if (family == AF_INET && size >= sizeof in) {
    memcpy(&in, address, sizeof in);
    *endpoint = v4_endpoint(ntohl(in.sin_addr.s_addr), ntohs(in.sin_port));
    return true;
  }
  if (family == AF_INET6 && size >= sizeof in6) {
    memcpy(&in6, address, sizeof in6);
    if (in6.sin6_scope_id) return false;
    *endpoint = (struct endpoint){.ip = in6.sin6_addr, .port = ntohs(in6.sin6_port)};
    return true;
  }
  return false;
}

socklen_t build_address(int family, const struct endpoint *endpoint, struct sockaddr_in6 *address) {
  memset(address, 0, sizeof *address);
  if (family == AF_INET) {
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_port = htons(endpoint->port), .sin_addr.s_addr = htonl(v4(endpoint))};
    memcpy(address, &in, sizeof in);
    return sizeof in;
  }
  address->sin6_family = AF_INET6;
  address->sin6_port = htons(endpoint->port);
  address->sin6_addr = endpoint->ip;
  return sizeof *address;
}

bool own_address(int fd, struct endpoint *endpoint) {
  struct sockaddr_in6 address;
  socklen_t size = sizeof address;
  return getsockname(fd, (struct sockaddr *)&address, &size) == 0 && parse_address(&address, size, endpoint);
}

bool peer_address(int fd, struct endpoint *endpoint) {
  struct sockaddr_in6 address;
  socklen_t size = sizeof address;
  return getpeername(fd, (struct sockaddr *)&address, &size) == 0 && parse_address(&address, size, endpoint);
}
