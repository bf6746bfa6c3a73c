/* Events and time: one thread, epoll. */
#include "sockets.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, TICK_MS = 100, SHORT_TICK_MS = 5 };

static int epoll;
static uint64_t next_tick;
static void **dead;
static size_t dead_count, dead_room;

void loop_init(void) { epoll = epoll_create1(EPOLL_CLOEXEC); }

int watch_add(struct watch *watch, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t)) {
  watch->fd = fd;
  watch->ready = ready;
  struct epoll_event event = {.events = events, .data.ptr = watch};
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return 0;
  watch->fd = -1;
  return -1;
}

void watch_change(struct watch *watch, uint32_t events) {
  struct epoll_event event = {.events = events, .data.ptr = watch};
  epoll_ctl(epoll, EPOLL_CTL_MOD, watch->fd, &event);
}

void watch_remove(struct watch *watch) {
  if (watch->fd >= 0) epoll_ctl(epoll, EPOLL_CTL_DEL, watch->fd, NULL);
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

void loop_run(bool (*tick)(uint64_t now)) {
  for (;;) {
    struct epoll_event events[BATCH];
    uint64_t now = now_ms();
    if (now >= next_tick) next_tick = now + (tick(now) ? SHORT_TICK_MS : TICK_MS);
    int count = epoll_wait(epoll, events, BATCH, (int)(next_tick - now));
    if (count < 0 && errno != EINTR) return;
    for (int i = 0; i < count; i++) {
      struct watch *watch = events[i].data.ptr;
      if (watch->fd >= 0) watch->ready(watch, events[i].events);
    }
    while (dead_count) free(dead[--dead_count]);
  }
}
