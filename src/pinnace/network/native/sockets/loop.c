/* Events and time: one thread. It waits in poll(2) for an epoll set, and for what is urgent.
 *
 * A process that has called sleeps until it is answered. With SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP the kernel wakes
 * whoever waits for the call on the processor that the caller leaves: no other processor has to be woken up for it,
 * which takes longer than all the rest. Whoever waits in epoll_wait(2) is woken as for any other event. */
#include "sockets.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, MAX_URGENT = 64, TICK_MS = 100, SHORT_TICK_MS = 5 };

static int epoll;
static struct pollfd polled[1 + MAX_URGENT]; /* the first is the epoll set */
static struct watch *urgent[1 + MAX_URGENT];
static nfds_t polled_count;
static uint64_t next_tick;
static void **dead;
static size_t dead_count, dead_room;

void loop_init(void) {
  epoll = epoll_create1(EPOLL_CLOEXEC);
  polled[polled_count++] = (struct pollfd){.fd = epoll, .events = POLLIN};
}

int watch_add(struct watch *watch, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t)) {
  watch->fd = fd;
  watch->ready = ready;
  struct epoll_event event = {.events = events, .data.ptr = watch};
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return 0;
  watch->fd = -1;
  return -1;
}

int watch_urgent(struct watch *watch, int fd, void (*ready)(struct watch *, uint32_t)) {
  if (polled_count > MAX_URGENT) return watch_add(watch, fd, EPOLLIN, ready);
  *watch = (struct watch){.fd = fd, .is_urgent = true, .ready = ready};
  urgent[polled_count] = watch;
  polled[polled_count++] = (struct pollfd){.fd = fd, .events = POLLIN};
  return 0;
}

void watch_change(struct watch *watch, uint32_t events) {
  struct epoll_event event = {.events = events, .data.ptr = watch};
  epoll_ctl(epoll, EPOLL_CTL_MOD, watch->fd, &event);
}

static void remove_urgent(const struct watch *watch) {
  nfds_t i = 1;
  while (urgent[i] != watch) i++;
  polled[i] = polled[--polled_count];
  urgent[i] = urgent[polled_count];
}

void watch_remove(struct watch *watch) {
  if (watch->fd >= 0 && watch->is_urgent)
    remove_urgent(watch);
  else if (watch->fd >= 0)
    epoll_ctl(epoll, EPOLL_CTL_DEL, watch->fd, NULL);
  watch->fd = -1;
}

void free_later(void *object) {
  if (dead_count == dead_room) {
    size_t room = dead_room ? 2 * dead_room : 64;
    void **larger = realloc(dead, room * sizeof *dead);
    if (!larger) return; /* lost, and harmless */
    dead = larger;
    dead_room = room;
  }
  dead[dead_count++] = object;
}

uint64_t now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

void tick_soon(void) {
  uint64_t soon = now_ms() + SHORT_TICK_MS;
  if (soon < next_tick) next_tick = soon;
}

static void call(struct watch *watch, uint32_t events) {
  if (watch->fd >= 0) watch->ready(watch, events);
}

static void call_urgent(void) {
  struct {
    struct watch *watch;
    uint32_t events;
  } found[MAX_URGENT];
  size_t count = 0;
  for (nfds_t i = 1; i < polled_count; i++) /* those that are called may come and go */
    if (polled[i].revents) {
      found[count].watch = urgent[i];
      found[count++].events = (uint32_t)polled[i].revents;
    }
  for (size_t i = 0; i < count; i++) call(found[i].watch, found[i].events);
}

void loop_run(bool (*tick)(uint64_t now)) {
  for (;;) {
    struct epoll_event events[BATCH];
    uint64_t now = now_ms();
    if (now >= next_tick) next_tick = now + (tick(now) ? SHORT_TICK_MS : TICK_MS);
    if (poll(polled, polled_count, (int)(next_tick - now)) > 0) {
      bool has_others = polled[0].revents;
      call_urgent();
      int count = has_others ? epoll_wait(epoll, events, BATCH, 0) : 0;
      for (int i = 0; i < count; i++) call(events[i].data.ptr, events[i].events);
    }
    while (dead_count) free(dead[--dead_count]);
  }
}
