/*
 * The packet loop of a node in C. native_packet_loop.py calls it through ctypes; packet_loop.py is the same in Python.
 *
 * A queue is one queue of the node's TUN device, with a table of links: sockets that lead to other nodes, by index.
 * Python makes the sockets and closes them. It says here which one a node has (queue_connect) and that it has none any
 * more (queue_disconnect). A queue without a link to a node sends over the connection on which that node sends to it
 * (receive_frames). Every function may be called from any thread, but queue_next only from one for each queue.
 *
 * A frame is a header of four bytes (the queue in the first, the length in the other three) and what was read from the
 * TUN device: the virtio header and the packet.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
  FRAME_HEADER = 4,
  VNET_HEADER = 10, /* struct virtio_net_hdr */
  IP_HEADER = 20,   /* without options */
  UDP_HEADER = 8,
  MAX_FRAME = VNET_HEADER + 65536, /* bytes that one read(2) of the device gives */
  MAX_SMALL = 4096,                /* larger packets are sent at once, without a look for the next one */
  SEND_BUFFER = 2 * (FRAME_HEADER + MAX_FRAME),
  RECEIVE_BUFFER = 1 << 18,
  SEND_TIMEOUT_MS = 200, /* that a full socket may block a queue before frames are dropped */
  EVENTS = 64,
  BUCKETS = 512, /* of the table of links */
};

const char *const source_checksum = SOURCE_CHECKSUM; /* see c_library.py */

/* What identifies a UDP flow. Addresses and ports are in network order; no padding, for memcmp. */
struct flow_key {
  uint32_t inside, outside;
  uint16_t inside_port, outside_port;
};

struct flow {
  struct flow_key key;
  int socket; /* on the host, connected to the outside; -1: this place is free */
  int tun;
};

struct flows {
  pthread_rwlock_t lock; /* for writing: flows come and go; for reading: their sockets are used */
  int epoll;
  unsigned char *frame; /* of the one thread that receives */
  double *last_used;    /* by place: seconds of CLOCK_MONOTONIC; Python reads them */
  uint32_t size;
  struct flow flow[];
};

struct link { /* there is one for each node that had a connection, and it stays */
  struct link *next;
  uint32_t index;
  pthread_mutex_t lock; /* held while the socket is used, so that it is not closed under the one who uses it */
  int is_connected;
  int is_adopted; /* the node has made the connection, not we */
  int socket;
  int is_full; /* the socket was full for SEND_TIMEOUT_MS and has taken nothing since */
  size_t rest_size;
  unsigned char *rest; /* of a frame that was sent in part */
};

struct queue {
  int tun;
  uint8_t number;
  uint32_t pods, pods_end, nodes, nodes_end; /* first address of each range, and the first one after it */
  uint32_t pod_bits;                         /* the number of bits that tell the pods of a node apart */
  uint32_t resolver;
  struct flows *flows;
  unsigned char *buffer; /* of SEND_BUFFER bytes */
  pthread_mutex_t lock;  /* held while a link is added */
  struct link *links[BUCKETS];
};

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static uint32_t read_32(const unsigned char *data) {
  uint32_t value;
  memcpy(&value, data, sizeof value);
  return ntohl(value);
}

static void write_32(unsigned char *data, uint32_t value) {
  value = htonl(value);
  memcpy(data, &value, sizeof value);
}

static void write_16(unsigned char *data, size_t value) {
  data[0] = (unsigned char)(value >> 8);
  data[1] = (unsigned char)value;
}

/* --- links ------------------------------------------------------------------------------------------------------ */

/* The link to a node, or NULL. Links are only ever added, at the front, so this needs no lock. */
static struct link *link_to(struct queue *queue, uint32_t index) {
  struct link *link = __atomic_load_n(&queue->links[index % BUCKETS], __ATOMIC_ACQUIRE);
  while (link && link->index != index) link = link->next;
  return link;
}

static struct link *add_link(struct queue *queue, uint32_t index) {
  pthread_mutex_lock(&queue->lock);
  struct link *link = link_to(queue, index);
  if (!link && (link = calloc(1, sizeof *link))) {
    link->index = index;
    link->next = queue->links[index % BUCKETS];
    pthread_mutex_init(&link->lock, NULL);
    __atomic_store_n(&queue->links[index % BUCKETS], link, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&queue->lock);
  return link;
}

static int is_writable(struct link *link) {
  struct pollfd poll_for = {.fd = link->socket, .events = POLLOUT};
  int ready;
  do ready = poll(&poll_for, 1, link->is_full ? 0 : SEND_TIMEOUT_MS);
  while (ready < 0 && errno == EINTR);
  link->is_full = ready <= 0;
  return ready > 0;
}

/* Send as much as the socket takes. Returns the number of bytes, or -1 if the connection is broken. */
static ssize_t send_bytes(struct link *link, const unsigned char *data, size_t size) {
  size_t sent = 0;
  while (sent < size) {
    ssize_t count = send(link->socket, data + sent, size - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0)
      sent += (size_t)count;
    else if (errno == EAGAIN) {
      if (!is_writable(link)) break;
    } else if (errno != EINTR)
      return -1;
  }
  return (ssize_t)sent;
}

/* Keep the rest of the frame of which only a part was sent: without it the framing would be broken. */
static int keep_rest(struct link *link, const unsigned char *frames, size_t sent) {
  size_t end = 0;
  while (end < sent) end += FRAME_HEADER + (read_32(frames + end) & 0xFFFFFF);
  if (end == sent) return 0;
  if (!link->rest && !(link->rest = malloc(FRAME_HEADER + MAX_FRAME))) return -1;
  link->rest_size = end - sent;
  memcpy(link->rest, frames + sent, link->rest_size);
  return 0;
}

static int send_rest(struct link *link) {
  ssize_t sent = send_bytes(link, link->rest, link->rest_size);
  if (sent < 0) return -1;
  link->rest_size -= (size_t)sent;
  memmove(link->rest, link->rest + sent, link->rest_size);
  return 0;
}

/* Send frames, or drop those for which the socket has no room. Returns -1 if the connection is broken. */
static int send_frames(struct link *link, const unsigned char *frames, size_t size) {
  if (link->rest_size) {
    if (send_rest(link)) return -1;
    if (link->rest_size) return 0;
  }
  ssize_t sent = send_bytes(link, frames, size);
  if (sent < 0) return -1;
  return (size_t)sent < size ? keep_rest(link, frames, (size_t)sent) : 0;
}

static void forget_connection(struct link *link) {
  link->is_connected = 0;
  link->is_full = 0;
  link->rest_size = 0;
  free(link->rest);
  link->rest = NULL;
}

/* After an error the link has no connection. Python notices it when it gets the next packet for it. */
static int link_send(struct link *link, const unsigned char *frames, size_t size) {
  pthread_mutex_lock(&link->lock);
  int result = link->is_connected ? send_frames(link, frames, size) : -1;
  if (result) forget_connection(link);
  pthread_mutex_unlock(&link->lock);
  return result;
}

/* A connection of our own is kept if the node makes another. Of those that it makes the newest counts: it may be on
 * another host by now, and nobody has told us that the old one is gone. */
static int connect_link(struct queue *queue, uint32_t index, int socket, int is_adopted) {
  struct link *link = add_link(queue, index);
  if (!link) return -1;
  pthread_mutex_lock(&link->lock);
  if (!is_adopted || !link->is_connected || link->is_adopted) {
    forget_connection(link);
    link->is_adopted = is_adopted;
    link->socket = socket;
    __atomic_store_n(&link->is_connected, 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&link->lock);
  return 0;
}

int queue_connect(struct queue *queue, uint32_t index, int socket) { return connect_link(queue, index, socket, 0); }

/* After this the socket is not used any more and may be closed. */
void queue_disconnect(struct queue *queue, uint32_t index, int socket) {
  struct link *link = link_to(queue, index);
  if (!link) return;
  pthread_mutex_lock(&link->lock);
  if (link->socket == socket) forget_connection(link);
  pthread_mutex_unlock(&link->lock);
}

/* Send one frame with its header. Returns -1 if there is no connection, or it is broken. */
int queue_send(struct queue *queue, uint32_t index, const unsigned char *frame, size_t size) {
  struct link *link = link_to(queue, index);
  if (!link || size < FRAME_HEADER || size > FRAME_HEADER + MAX_FRAME ||
      (read_32(frame) & 0xFFFFFF) != size - FRAME_HEADER)
    return -1;
  return link_send(link, frame, size);
}

/* --- UDP to the outside ----------------------------------------------------------------------------------------- */

struct flows *flows_new(double *last_used, uint32_t size) {
  struct flows *flows = calloc(1, sizeof *flows + size * sizeof flows->flow[0]);
  unsigned char *frame = malloc(MAX_FRAME);
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (!flows || !frame || epoll < 0) return NULL;
  pthread_rwlockattr_t attributes;
  pthread_rwlockattr_init(&attributes);
  pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(&flows->lock, &attributes);
  flows->epoll = epoll;
  flows->frame = frame;
  flows->last_used = last_used;
  flows->size = size;
  for (uint32_t place = 0; place < size; place++) flows->flow[place].socket = -1;
  return flows;
}

/* Use a socket for a flow. Returns its place, or -1. */
int flows_add(struct flows *flows, int socket, int tun, uint32_t inside, uint32_t outside, uint16_t inside_port,
              uint16_t outside_port) {
  int place = -1;
  pthread_rwlock_wrlock(&flows->lock);
  for (uint32_t i = 0; i < flows->size && place < 0; i++)
    if (flows->flow[i].socket < 0) place = (int)i;
  if (place >= 0) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)place};
    if (epoll_ctl(flows->epoll, EPOLL_CTL_ADD, socket, &event))
      place = -1;
    else {
      struct flow_key key = {htonl(inside), htonl(outside), htons(inside_port), htons(outside_port)};
      flows->flow[place] = (struct flow){key, socket, tun};
      flows->last_used[place] = now();
    }
  }
  pthread_rwlock_unlock(&flows->lock);
  return place;
}

/* After this the flow's socket is not used any more and may be closed. */
void flows_remove(struct flows *flows, uint32_t place) {
  pthread_rwlock_wrlock(&flows->lock);
  if (place < flows->size && flows->flow[place].socket >= 0) {
    epoll_ctl(flows->epoll, EPOLL_CTL_DEL, flows->flow[place].socket, NULL);
    flows->flow[place].socket = -1;
  }
  pthread_rwlock_unlock(&flows->lock);
}

static struct flow *find_flow(struct flows *flows, const struct flow_key *key) {
  for (uint32_t i = 0; i < flows->size; i++)
    if (!memcmp(&flows->flow[i].key, key, sizeof *key) && flows->flow[i].socket >= 0) return &flows->flow[i];
  return NULL;
}

/* Send a UDP packet from the device to the outside. Returns whether there is a flow for it. */
static int send_to_outside(struct flows *flows, const unsigned char *frame, size_t size) {
  const unsigned char *ip = frame + VNET_HEADER;
  size_t header = (size_t)(ip[0] & 0xF) * 4, ip_size = size - VNET_HEADER;
  int is_fragment = (ip[6] & 0x3F) || ip[7];
  if (ip[9] != IPPROTO_UDP || is_fragment || header < IP_HEADER || ip_size < header + UDP_HEADER) return 0;
  struct flow_key key;
  memcpy(&key.inside, ip + 12, 8);
  memcpy(&key.inside_port, ip + header, 4);
  pthread_rwlock_rdlock(&flows->lock);
  struct flow *flow = find_flow(flows, &key);
  if (flow) {
    flows->last_used[flow - flows->flow] = now();
    send(flow->socket, ip + header + UDP_HEADER, ip_size - header - UDP_HEADER, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  pthread_rwlock_unlock(&flows->lock);
  return flow != NULL;
}

/* The Internet checksum (RFC 1071) of an IP header without options. */
static uint16_t header_checksum(const unsigned char *header) {
  uint32_t sum = 0;
  for (int i = 0; i < IP_HEADER; i += 2) sum += (uint32_t)header[i] << 8 | header[i + 1];
  sum = (sum & 0xFFFF) + (sum >> 16);
  return (uint16_t)~(sum + (sum >> 16));
}

/* Fill in what precedes the payload of an answer. Its UDP checksum is left out, which IPv4 allows. */
static void write_headers(unsigned char *frame, const struct flow_key *key, size_t payload) {
  static const unsigned char ip_header[IP_HEADER] = {0x45, [6] = 0x40, [8] = 64, [9] = IPPROTO_UDP};
  unsigned char *ip = frame + VNET_HEADER, *udp = ip + IP_HEADER;
  memset(frame, 0, VNET_HEADER);
  memcpy(ip, ip_header, sizeof ip_header);
  write_16(ip + 2, IP_HEADER + UDP_HEADER + payload);
  memcpy(ip + 12, &key->outside, 4);
  memcpy(ip + 16, &key->inside, 4);
  write_16(ip + 10, header_checksum(ip));
  memcpy(udp, &key->outside_port, 2);
  memcpy(udp + 2, &key->inside_port, 2);
  write_16(udp + 4, UDP_HEADER + payload);
  write_16(udp + 6, 0);
}

static void receive_answer(struct flows *flows, uint32_t place) {
  enum { HEADERS = VNET_HEADER + IP_HEADER + UDP_HEADER, MAX_PAYLOAD = 65535 - IP_HEADER - UDP_HEADER };
  unsigned char *frame = flows->frame;
  struct flow_key key;
  int tun = -1;
  ssize_t count = -1;
  pthread_rwlock_rdlock(&flows->lock);
  struct flow *flow = &flows->flow[place];
  if (flow->socket >= 0 && (count = recv(flow->socket, frame + HEADERS, MAX_PAYLOAD, MSG_DONTWAIT)) >= 0) {
    flows->last_used[place] = now();
    key = flow->key;
    tun = flow->tun;
  }
  pthread_rwlock_unlock(&flows->lock);
  if (count < 0) return;
  write_headers(frame, &key, (size_t)count);
  if (write(tun, frame, HEADERS + (size_t)count) < 0) {
    /* the kernel has no room for it: lost, as in any network */
  }
}

/* Write what comes from the outside to the device, until a signal. */
void flows_receive(struct flows *flows) {
  struct epoll_event events[EVENTS];
  int count;
  while ((count = epoll_wait(flows->epoll, events, EVENTS, -1)) >= 0)
    for (int i = 0; i < count; i++) receive_answer(flows, events[i].data.u32);
}

/* --- from the TUN device ---------------------------------------------------------------------------------------- */

/* ``buffer`` has SEND_BUFFER bytes. */
struct queue *queue_new(int tun, uint8_t number, unsigned char *buffer, struct flows *flows, uint32_t pods,
                        uint32_t pods_end, uint32_t pod_bits, uint32_t nodes, uint32_t nodes_end, uint32_t resolver) {
  struct queue *queue = calloc(1, sizeof *queue);
  if (!queue) return NULL;
  queue->tun = tun, queue->number = number, queue->buffer = buffer, queue->flows = flows;
  queue->pods = pods, queue->pods_end = pods_end, queue->pod_bits = pod_bits;
  queue->nodes = nodes, queue->nodes_end = nodes_end, queue->resolver = resolver;
  pthread_mutex_init(&queue->lock, NULL);
  return queue;
}

static int is_ipv4(const unsigned char *frame, size_t size) {
  return size >= VNET_HEADER + IP_HEADER && frame[VNET_HEADER] >> 4 == 4;
}

/* The connected link for an address, or NULL. */
static struct link *find_link(struct queue *queue, uint32_t address) {
  uint32_t owner = UINT32_MAX;
  if (address >= queue->pods && address < queue->pods_end)
    owner = (address - queue->pods) >> queue->pod_bits;
  else if (address > queue->nodes && address < queue->nodes_end && address != queue->resolver)
    owner = address - queue->nodes - 1;
  struct link *link = link_to(queue, owner);
  return link && __atomic_load_n(&link->is_connected, __ATOMIC_ACQUIRE) ? link : NULL;
}

/* Read a packet that is there already. Where the device cannot say so (before Linux 5.11), none is. */
static ssize_t read_ready(int tun, unsigned char *data) {
  struct iovec vector = {.iov_base = data, .iov_len = MAX_FRAME};
  return preadv2(tun, &vector, 1, -1, RWF_NOWAIT);
}

/*
 * Send packets of the queue to the nodes and flows that they are for, until there is one for which there is neither.
 *
 * That packet is left in the buffer, after room for a frame header. Returns its size, or a negative errno.
 * A packet that was waited for is sent at once. Small packets for the same node that are there already, when one was
 * sent, are sent together.
 */
ssize_t queue_next(struct queue *queue) {
  unsigned char *buffer = queue->buffer;
  size_t begin = 0, end = 0; /* frames that are not sent yet, all to one link */
  struct link *pending = NULL;
  for (int waits = 1;;) {
    unsigned char *packet = buffer + end + FRAME_HEADER;
    ssize_t count = waits ? read(queue->tun, packet, MAX_FRAME) : read_ready(queue->tun, packet);
    if (count <= 0 && waits) return count ? -errno : -EIO;
    struct link *link = NULL;
    int is_valid = count > 0 && is_ipv4(packet, (size_t)count);
    if (is_valid) link = find_link(queue, read_32(packet + VNET_HEADER + 16));
    if (pending && link != pending) {
      link_send(pending, buffer + begin, end - begin);
      pending = NULL;
      begin = end;
    }
    if (is_valid && !link && !send_to_outside(queue->flows, packet, (size_t)count)) {
      memmove(buffer + FRAME_HEADER, packet, (size_t)count);
      return count;
    }
    if (link) {
      write_32(buffer + end, (uint32_t)queue->number << 24 | (uint32_t)count);
      end += FRAME_HEADER + (size_t)count;
      pending = link;
      if (waits || count > MAX_SMALL || SEND_BUFFER - end < FRAME_HEADER + MAX_FRAME) {
        link_send(link, buffer + begin, end - begin);
        pending = NULL;
      }
    }
    waits = count <= 0;
    if (!pending) begin = end = 0;
  }
}

/* --- to the TUN device ------------------------------------------------------------------------------------------ */

/*
 * Write the frames of a node's connection to the queues, until it ends. Returns 0, or a negative errno.
 *
 * ``adopter`` is the index of a node that has made the connection, or -1 if we have. The queue of its first frame sends
 * to that node over the same connection, unless it has made one. Answers then carry the acknowledgements of TCP, which
 * would cost as much as the packets. After the return no queue uses the socket for it any more.
 */
int receive_frames(int socket, struct queue *const *queues, uint32_t count, int64_t adopter) {
  unsigned char *buffer = malloc(RECEIVE_BUFFER);
  if (!buffer) return -ENOMEM;
  struct queue *adopted = NULL;
  size_t begin = 0, end = 0;
  int result = 0;
  for (;;) {
    ssize_t got = recv(socket, buffer + end, RECEIVE_BUFFER - end, 0);
    if (got <= 0) {
      if (got < 0 && errno == EINTR) continue;
      result = got ? -errno : 0;
      break;
    }
    end += (size_t)got;
    size_t size = 0;
    while (end - begin >= FRAME_HEADER) {
      uint32_t header = read_32(buffer + begin);
      size = header & 0xFFFFFF;
      if (size > MAX_FRAME || end - begin - FRAME_HEADER < size) break;
      struct queue *queue = queues[(header >> 24) % count];
      begin += FRAME_HEADER;
      if (adopter >= 0 && !adopted) connect_link(adopted = queue, (uint32_t)adopter, socket, 1);
      if (write(queue->tun, buffer + begin, size) < 0) {
        /* the kernel refuses malformed packets; the connection goes on */
      }
      begin += size;
    }
    if (size > MAX_FRAME) {
      result = -EPROTO;
      break;
    }
    if (begin == end)
      begin = end = 0;
    else if (RECEIVE_BUFFER - end < FRAME_HEADER + MAX_FRAME) {
      memmove(buffer, buffer + begin, end - begin);
      end -= begin;
      begin = 0;
    }
  }
  if (adopted) queue_disconnect(adopted, (uint32_t)adopter, socket);
  free(buffer);
  return result;
}
