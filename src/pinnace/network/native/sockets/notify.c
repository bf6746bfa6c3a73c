/* Calls in hand, and answers to them: seccomp_unotify(2).
 *
 * A caller waits in its system call until it is answered. If a signal interrupts it, the call is void, and every answer
 * to it fails: nobody waits any more. */
#include "sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP /* from Linux 6.6: the CPU is handed over at once */
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP 1UL
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#endif
#ifndef SECCOMP_ADDFD_FLAG_SEND
#define SECCOMP_ADDFD_FLAG_SEND 2
#endif
#if defined __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

struct source {
  struct watch watch;
  uint32_t key;
  int fd; /* -1: nobody is left who could call */
  unsigned calls;
};

static struct slot *unused[MAX_CALLS];
static size_t unused_count;

void calls_init(void) {
  for (size_t i = 0; i < MAX_CALLS; i++) {
    struct slot *slot = &memory->slots[i];
    if (!slot->about.id) slot->key = 0; /* the kernel was asked for a call, and gave none */
    if (!slot->key) unused[unused_count++] = slot;
  }
}

static void dispatch(struct call *call) {
  const struct seccomp_data *data = &call->slot->about.data;
  switch (data->arch == ARCHITECTURE && !node.pass_through ? data->nr : -1) {
    case SYS_connect: handle_connect(call); break;
    case SYS_accept:
    case SYS_accept4: handle_accept(call); break;
    case SYS_bind: handle_bind(call); break;
    case SYS_listen: handle_listen(call); break;
    case SYS_getsockname: handle_name(call, false); break;
    case SYS_getpeername: handle_name(call, true); break;
    default: let_continue(call);
  }
}

static void close_source(struct source *source) {
  watch_remove(&source->watch);
  close(source->fd);
  source->fd = -1;
  if (!source->calls) free_later(source);
}

static void receive(struct watch *watch, uint32_t events) {
  struct source *source = (struct source *)watch;
  if (!(events & EPOLLIN)) {
    close_source(source);
    return;
  }
  static struct slot spare;
  struct slot *slot = unused_count ? unused[--unused_count] : &spare;
  memset(&slot->about, 0, sizeof slot->about); /* the kernel insists */
  slot->planned = NO_ANSWER;
  slot->key = source->key;
  struct call call = {.source = source, .slot = slot};
  source->calls++;
  if (ioctl(source->fd, SECCOMP_IOCTL_NOTIF_RECV, &slot->about))
    drop(&call);
  else if (slot == &spare) /* too many are in hand */
    let_continue(&call);
  else
    dispatch(&call);
}

void source_add(uint32_t key, int fd) {
  struct source *source = calloc(1, sizeof *source);
  if (!source || watch_urgent(&source->watch, fd, receive)) {
    close(fd); /* the agent has a copy, and offers it again when we are started again */
    free(source);
    return;
  }
  ioctl(fd, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP);
  source->key = key;
  source->fd = fd;
  for (size_t i = 0; i < MAX_CALLS; i++) /* those that an earlier server has left */
    if (memory->slots[i].key == key) {
      struct call call = {.source = source, .slot = &memory->slots[i]};
      source->calls++;
      if (is_waited_for(&call)) /* or its process may be another one by now */
        dispatch(&call);
      else
        drop(&call);
    }
}

pid_t caller(const struct call *call) { return (pid_t)call->slot->about.pid; }

uint64_t argument(const struct call *call, int number) { return call->slot->about.data.args[number]; }

int socket_number(const struct call *call) { return (int)argument(call, 0); }

bool is_accept4(const struct call *call) { return call->slot->about.data.nr == SYS_accept4; }

bool is_waited_for(const struct call *call) {
  uint64_t id = call->slot->about.id;
  return ioctl(call->source->fd, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0;
}

void drop(struct call *call) {
  if (!call->slot) return;
  struct slot *slot = call->slot;
  struct source *source = call->source;
  call->slot = NULL;
  slot->key = 0;
  if (slot >= memory->slots && slot < memory->slots + MAX_CALLS) unused[unused_count++] = slot;
  if (!--source->calls && source->fd < 0) free_later(source);
}

static bool respond(struct call *call, struct seccomp_notif_resp response) {
  response.id = call->slot->about.id;
  bool done = ioctl(call->source->fd, SECCOMP_IOCTL_NOTIF_SEND, &response) == 0;
  drop(call);
  return done;
}

bool let_continue(struct call *call) {
  return respond(call, (struct seccomp_notif_resp){.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE});
}

bool answer(struct call *call, int value) {
  return respond(call, (struct seccomp_notif_resp){.val = value < 0 ? 0 : value, .error = value < 0 ? value : 0});
}

static int add_descriptor(struct call *call, struct seccomp_notif_addfd about) {
  about.id = call->slot->about.id;
  return ioctl(call->source->fd, SECCOMP_IOCTL_NOTIF_ADDFD, &about);
}

int answer_with_descriptor(struct call *call, int fd, bool cloexec) {
  int number = add_descriptor(call, (struct seccomp_notif_addfd){
                                        .flags = SECCOMP_ADDFD_FLAG_SEND,
                                        .srcfd = (uint32_t)fd,
                                        .newfd_flags = cloexec ? O_CLOEXEC : 0,
                                    });
  if (number < 0) return errno == EINPROGRESS ? ENOENT : errno;
  drop(call);
  return 0;
}

bool replace_descriptor(struct call *call, int fd, bool cloexec, int answer_that_follows) {
  call->slot->planned = answer_that_follows;
  return add_descriptor(call, (struct seccomp_notif_addfd){
                                  .flags = SECCOMP_ADDFD_FLAG_SETFD,
                                  .srcfd = (uint32_t)fd,
                                  .newfd = (uint32_t)socket_number(call),
                                  .newfd_flags = cloexec ? O_CLOEXEC : 0,
                              }) >= 0;
}

int write_address(const struct call *call, int family, const struct endpoint *endpoint) {
  uint64_t place = argument(call, 1), length = argument(call, 2);
  int room;
  if (!place) return 0;
  if (!read_memory(caller(call), length, &room, sizeof room)) return EFAULT;
  if (room < 0) return EINVAL;
  struct sockaddr_in6 address;
  socklen_t size = build_address(family, endpoint, &address);
  size_t written = (size_t)room < size ? (size_t)room : size;
  return write_memory(caller(call), place, &address, written, length, &size, sizeof size) ? 0 : EFAULT;
}
