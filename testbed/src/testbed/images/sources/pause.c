/* The first process of a pod: holds the namespaces, reaps what is left to it, and ends when asked. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

int main(void) {
  sigset_t signals;

  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  /* Blocked and waited for: the kernel drops a signal to a PID 1 that has no handler, but not a blocked one. */
  if (sigprocmask(SIG_BLOCK, &signals, NULL) != 0) return 1;
  for (;;) {
    /* Children may have died before the mask was set; one signal may stand for many of them. */
    while (waitpid(-1, NULL, WNOHANG) > 0);
    int received = sigwaitinfo(&signals, NULL);
    if (received == SIGINT || received == SIGTERM) return 0;
  }
}
