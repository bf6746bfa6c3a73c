/* The proofs of network/handshake.py, for the protocol "sockets". */
#include "sockets.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

void random_nonce(uint8_t nonce[NONCE]) {
  while (getrandom(nonce, NONCE, 0) != NONCE) continue;
}

static void prove(const char *role, const uint8_t *listener_nonce, const uint8_t *dialler_nonce, const uint8_t *dialler,
                  uint32_t node_index, uint32_t ip, uint16_t port, uint8_t digest[DIGEST]) {
  uint8_t text[160];
  struct in_addr address = {htonl(ip)};
  char host[INET_ADDRSTRLEN] = "";
  size_t size = strlen(role);
  inet_ntop(AF_INET, &address, host, sizeof host);
  memcpy(text, role, size);
  memcpy(text + size, listener_nonce, NONCE);
  memcpy(text + size + NONCE, dialler_nonce, NONCE);
  memcpy(text + size + 2 * NONCE, dialler, 4);
  size += 2 * NONCE + 4;
  size += (size_t)snprintf((char *)text + size, sizeof text - size, "%u@%s:%u", node_index, host, port);
  hmac_sha256(node.key, sizeof node.key, text, size, digest);
}

void dialler_proof(const uint8_t nonce[NONCE], uint32_t wanted, uint32_t ip, uint16_t port, uint8_t proof[PROOF],
                   uint8_t expected[DIGEST]) {
  uint32_t index = htonl(node.index);
  memcpy(proof, &index, 4);
  random_nonce(proof + 4);
  prove("dial", nonce, proof + 4, proof, wanted, ip, port, proof + 4 + NONCE);
  prove("listen", nonce, proof + 4, proof, wanted, ip, port, expected);
}

bool check_proof(const uint8_t nonce[NONCE], const uint8_t proof[PROOF], uint8_t own[DIGEST]) {
  uint8_t expected[DIGEST];
  uint32_t index;
  memcpy(&index, proof, 4);
  uint16_t port = (uint16_t)node.port;
  prove("dial", nonce, proof + 4, proof, node.index, node.address, port, expected);
  prove("listen", nonce, proof + 4, proof, node.index, node.address, port, own);
  return ntohl(index) <= node.last_index && same_digest(expected, proof + 4 + NONCE);
}

bool same_digest(const uint8_t *one, const uint8_t *other) { /* in the same time, wherever they differ */
  uint8_t difference = 0;
  for (int i = 0; i < DIGEST; i++) difference |= one[i] ^ other[i];
  return !difference;
}
