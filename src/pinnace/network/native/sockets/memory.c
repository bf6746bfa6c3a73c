/* What outlives the server: Python makes this memory before it forks one, and the next one finds it as it was.
 *
 * A caller whose call was received and never answered would wait for ever. So the kernel writes each call right into a
 * slot here, and the next server goes on with it. The addresses that pods see are here, too. */
#include "sockets.h"

struct memory *memory;

void count(enum counter counter) { memory->counters[counter]++; }

static struct name *bucket(uint64_t cookie) { return &memory->names[cookie % (MAX_NAMES / WAYS) * WAYS]; }

void set_name(uint64_t cookie, int family, const struct endpoint *local, const struct endpoint *peer) {
  struct name *first = bucket(cookie), *name = &first[memory->turn++ % WAYS]; /* the oldest, more or less */
  for (int i = 0; i < WAYS; i++)
    if (!first[i].cookie || first[i].cookie == cookie) {
      name = &first[i];
      break;
    }
  *name = (struct name){.cookie = cookie, .family = family, .local = *local, .peer = *peer};
}

struct name *find_name(uint64_t cookie) {
  struct name *first = bucket(cookie);
  for (int i = 0; i < WAYS; i++)
    if (first[i].cookie == cookie) return &first[i];
  return NULL;
}
