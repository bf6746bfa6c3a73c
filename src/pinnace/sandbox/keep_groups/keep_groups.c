/* Executes a program in such a way that setgroups(2) succeeds without effect, for it and for all that it starts:
 *
 *     keep_groups PROGRAM ARGUMENT...
 *
 * It has to be root of its user namespace. See keeping_groups.py, which does the same where this was not compiled.
 */

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

enum { NO_PROGRAM = 2 };

extern const char *const source_checksum;
const char *const source_checksum = SOURCE_CHECKSUM; /* see c_library.py */

static struct sock_filter instructions[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 0, 3),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setgroups, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO), /* with no error */
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
static const struct sock_fprog filter = {
    .len = sizeof(instructions) / sizeof(instructions[0]),
    .filter = instructions,
};

static int fail(const char *what) {
  fprintf(stderr, "keep_groups: %s: %s\n", what, strerror(errno));
  return 1;
}

int main(int count, char **arguments) {
  if (count < 2) return NO_PROGRAM;
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter)) return fail("seccomp");
  execv(arguments[1], arguments + 1);
  return fail(arguments[1]);
}
