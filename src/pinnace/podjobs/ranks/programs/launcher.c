/* What `srun`, `mpirun` and `mpiexec` are inside a container: hands its standard streams and its environment to the
 * node's agent, which knows from the kernel who asks; passes on signals; ends with the exit code that it is told.
 *
 * It has to run in any image, so it uses nothing but the kernel. The programs beside this file are made of it by
 * `python -m pinnace.podjobs.ranks.launcher`, for users who have no compiler.
 */

#include <asm/unistd.h>

#define SOCKET "/run/pinnace/socket"
#define FORWARDED \
  (1 << 0 | 1 << 1 | 1 << 2 | 1 << 9 | 1 << 11 | 1 << 13 | 1 << 14) /* HUP INT QUIT USR1 USR2 ALRM TERM */

enum {
  AT_FDCWD = -100,
  AF_UNIX = 1,
  SOCK_STREAM = 1,
  SOL_SOCKET = 1,
  SCM_RIGHTS = 1,
  SIG_BLOCK = 0,
  POLLIN = 1,
  MSG_NOSIGNAL = 0x4000
};

static long call(long number, long a, long b, long c, long d, long e) {
#if defined(__x86_64__)
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
  return x0;
#endif
}

static void finish(int code) {
  for (;;) call(__NR_exit_group, code, 0, 0, 0, 0);
}

static void fail(const char *text, long length) {
  call(__NR_write, 2, (long)text, length, 0, 0);
  finish(1);
}
#define FAIL(text) fail(text, sizeof(text) - 1)

void _start(void) {
  static const struct {
    unsigned short family;
    char path[108];
  } address = {AF_UNIX, SOCKET};
  struct {
    unsigned long length;
    int level, type;
    int files[4];
  } rights = {sizeof(rights), SOL_SOCKET, SCM_RIGHTS, {0, 1, 2, 0}};
  char word = 'r';
  struct {
    void *base;
    unsigned long length;
  } piece = {&word, 1};
  struct {
    void *name;
    unsigned int name_length;
    void *pieces;
    unsigned long count;
    void *control;
    unsigned long control_length;
    int flags;
  } message = {0, 0, &piece, 1, &rights, sizeof(rights), 0};
  unsigned long forwarded = FORWARDED;
  unsigned char about[128]; /* struct signalfd_siginfo */

  call(__NR_rt_sigprocmask, SIG_BLOCK, (long)&forwarded, 0, sizeof(forwarded), 0);
  rights.files[3] = call(__NR_openat, AT_FDCWD, (long)"/proc/self/environ", 0, 0, 0);
  int node = call(__NR_socket, AF_UNIX, SOCK_STREAM, 0, 0, 0);
  if (call(__NR_connect, node, (long)&address, sizeof(address), 0, 0) < 0)
    FAIL("pinnace: the node that starts ranks does not answer\n");
  if (call(__NR_sendmsg, node, (long)&message, MSG_NOSIGNAL, 0, 0) < 0)
    FAIL("pinnace: one of the standard streams is closed, or /proc is not mounted\n");
  int signals = call(__NR_signalfd4, -1, (long)&forwarded, sizeof(forwarded), 0, 0);
  struct {
    int descriptor;
    short events, found;
  } watched[2] = {{node, POLLIN, 0}, {signals, POLLIN, 0}};
  for (;;) {
    unsigned char code;
    call(__NR_ppoll, (long)watched, 2, 0, 0, 0);
    if (watched[0].found) {
      if (call(__NR_read, node, (long)&code, 1, 0, 0) != 1) FAIL("pinnace: the node that starts ranks has hung up\n");
      finish(code);
    }
    if (watched[1].found && call(__NR_read, signals, (long)about, sizeof(about), 0, 0) > 0)
      call(__NR_write, node, (long)about, 1, 0, 0); /* the signal's number comes first; little end first */
  }
}
