/*
 * /bin/sh of the conformance tests' busybox image.
 *
 * The tests want two things of it that no shell of Debian has both of: the words of busybox' shell in its messages, and
 * variables such as "my.name", which Kubernetes allows. Busybox' shell drops these; bash hands them on. So bash is
 * taken where there is such a variable.
 */
#include <ctype.h>
#include <unistd.h>

extern char **environ;

static int is_plain(const char *variable) {
  const char *c = variable;

  if (!isalpha((unsigned char)*c) && *c != '_') return 0;
  while (isalnum((unsigned char)*c) || *c == '_') c++;
  return *c == '=';
}

int main(int argc, char **argv) {
  const char *shell = "/usr/bin/busybox";

  (void)argc;
  for (char **variable = environ; *variable; variable++)
    if (!is_plain(*variable)) shell = "/usr/bin/bash";
  execv(shell, argv);
  return 127;
}
