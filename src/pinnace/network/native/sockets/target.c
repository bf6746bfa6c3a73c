/* The process that called: its memory, its descriptors, its network. The owner of a user namespace may see all this. */
#include "sockets.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/nsfs.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL /* from Linux 6.9; older kernels take the first thread of a process alone */
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#define EPOLL_LINK "anon_inode:[eventpoll]"

enum { KNOWN = 64 };

bool read_memory(pid_t pid, uint64_t address, void *buffer, size_t size) {
  struct iovec local = {buffer, size}, remote = {(void *)(uintptr_t)address, size};
  return process_vm_readv(pid, &local, 1, &remote, 1, 0) == (ssize_t)size;
}

static struct iovec piece(const void *begin, size_t size) { return (struct iovec){(void *)(uintptr_t)begin, size}; }

bool write_memory(pid_t pid, uint64_t to_first, const void *first, size_t first_size, uint64_t to_second,
                  const void *second, size_t second_size) {
  struct iovec local[] = {piece(first, first_size), piece(second, second_size)};
  struct iovec remote[] = {piece((void *)(uintptr_t)to_first, first_size),
                           piece((void *)(uintptr_t)to_second, second_size)};
  return process_vm_writev(pid, local, 2, remote, 2, 0) == (ssize_t)(first_size + second_size);
}

/* The beginning of a file. Closes it. */
static ssize_t read_once(int fd, char *buffer, size_t room) {
  if (fd < 0) return -1;
  ssize_t size = read(fd, buffer, room - 1);
  close(fd);
  buffer[size < 0 ? 0 : size] = 0;
  return size;
}

static ssize_t read_all(int fd, char *buffer, size_t room) {
  if (fd < 0) return -1;
  size_t size = 0;
  ssize_t got;
  while (size < room - 1 && (got = read(fd, buffer + size, room - 1 - size)) > 0) size += (size_t)got;
  close(fd);
  buffer[size] = 0;
  return (ssize_t)size;
}

static pid_t process_of(pid_t thread) {
  char text[2048], path[32];
  snprintf(path, sizeof path, "/proc/%d/status", thread);
  if (read_all(open(path, O_RDONLY | O_CLOEXEC), text, sizeof text) < 0) return -1;
  const char *line = strstr(text, "\nTgid:");
  return line ? (pid_t)strtol(line + 6, NULL, 10) : -1;
}

/* A pidfd of that very thread. Older kernels have them for the first thread of a process alone. */
static int open_thread(pid_t thread) {
  int fd = (int)syscall(SYS_pidfd_open, thread, PIDFD_THREAD);
  return fd < 0 && (errno == EINVAL || errno == ENOENT) ? (int)syscall(SYS_pidfd_open, thread, 0) : fd;
}

int open_process(pid_t thread) {
  int fd = open_thread(thread);
  return fd < 0 && (errno == EINVAL || errno == ENOENT) ? (int)syscall(SYS_pidfd_open, process_of(thread), 0) : fd;
}

/* Threads that have called before: most call again. */
static struct known {
  pid_t pid; /* 0: none */
  int pidfd; /* of that very thread, so it fails when another one has its number; -1: it has none, look again */
  int proc;  /* its directory in /proc */
} known[KNOWN];

static void forget(struct known *this) {
  if (this->pid && this->pidfd >= 0) close(this->pidfd);
  if (this->pid && this->proc >= 0) close(this->proc);
  this->pid = 0;
}

static const struct known *look_up(pid_t pid) {
  struct known *this = &known[(unsigned)pid % KNOWN];
  if (this->pid == pid && this->pidfd >= 0) return this;
  forget(this);
  char path[32];
  snprintf(path, sizeof path, "/proc/%d", pid);
  *this = (struct known){.pid = pid, .pidfd = open_thread(pid), .proc = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC)};
  return this;
}

static int get_descriptor(int process, int number) { return (int)syscall(SYS_pidfd_getfd, process, number, 0); }

int copy_descriptor(pid_t pid, int number) {
  int process = look_up(pid)->pidfd, fd = process < 0 ? -1 : get_descriptor(process, number);
  if (fd >= 0 || (process >= 0 && errno != ESRCH)) return fd;
  forget(&known[(unsigned)pid % KNOWN]);
  process = open_process(pid);
  if (process < 0) return -1;
  fd = get_descriptor(process, number);
  close(process);
  return fd;
}

/* A file of a thread whose descriptor was copied just now. */
static int open_proc(pid_t pid, const char *path) { return openat(look_up(pid)->proc, path, O_RDONLY | O_CLOEXEC); }

int descriptor_flags(pid_t pid, int number) {
  char text[256], path[32];
  snprintf(path, sizeof path, "fdinfo/%d", number);
  if (read_once(open_proc(pid, path), text, sizeof text) < 0) return -1;
  const char *flags = strstr(text, "flags:");
  return flags ? (int)strtol(flags + 6, NULL, 8) : -1;
}

enum in_epoll { NO_EPOLL, NOT_IN_EPOLL, IN_EPOLL };

/* Whether a descriptor is an epoll set, and has another descriptor in it. */
static enum in_epoll look_in_epoll(pid_t pid, int epoll, int number) {
  struct kcmp_epoll_slot slot = {.efd = (uint32_t)epoll, .tfd = (uint32_t)number};
  long result = syscall(SYS_kcmp, pid, pid, KCMP_EPOLL_TFD, number, &slot);
  if (result >= 0) return result == 0 ? IN_EPOLL : NOT_IN_EPOLL;
  return errno == ENOENT ? NOT_IN_EPOLL : NO_EPOLL;
}

/* By the numbers of its descriptors, of which there are so many: a hundred times faster than reading their links. */
static bool is_shared_by_numbers(pid_t pid, int number, long descriptors) {
  long seen = 0, last = 4 * descriptors + 1024;
  for (int other = 0; seen < descriptors && other < last; other++) {
    long result = other == number ? 1 : syscall(SYS_kcmp, pid, pid, KCMP_FILE, number, other);
    if (result < 0) continue; /* there is none of that number */
    seen++;
    if (result == 0 || (other != number && look_in_epoll(pid, other, number) == IN_EPOLL)) return true;
  }
  return seen < descriptors;
}

bool is_shared_by_links(pid_t pid, int number, int own, int directory_fd) {
  struct stat about;
  char link[64], target[64];
  DIR *directory = fstat(own, &about) ? NULL : fdopendir(dup(directory_fd));
  if (!directory) return true;
  snprintf(link, sizeof link, "socket:[%llu]", (unsigned long long)about.st_ino);
  bool shared = false;
  for (struct dirent *entry; !shared && (entry = readdir(directory));) {
    ssize_t size = readlinkat(directory_fd, entry->d_name, target, sizeof target - 1);
    if (size < 0) continue;
    target[size] = 0;
    int other = (int)strtol(entry->d_name, NULL, 10);
    shared = (strcmp(target, link) == 0 && other != number) ||
             (strcmp(target, EPOLL_LINK) == 0 && look_in_epoll(pid, other, number) != NOT_IN_EPOLL);
  }
  closedir(directory);
  return shared;
}

bool is_shared(pid_t pid, int number, int own) {
  static bool has_kcmp;
  struct stat about;
  if (fstatat(look_up(pid)->proc, "fd", &about, 0)) return true;
  has_kcmp = has_kcmp || syscall(SYS_kcmp, pid, pid, KCMP_FILE, number, number) == 0;
  if (about.st_size > 0 && has_kcmp) /* from Linux 6.2 the size is the number of descriptors */
    return is_shared_by_numbers(pid, number, about.st_size);
  int directory = open_proc(pid, "fd");
  bool shared = directory < 0 || is_shared_by_links(pid, number, own, directory);
  if (directory >= 0) close(directory);
  return shared;
}

static uint64_t inode_of(int fd) {
  struct stat about;
  return fd >= 0 && fstat(fd, &about) == 0 ? about.st_ino : 0;
}

bool is_in_network_of(pid_t pid, int socket) {
  int own = ioctl(socket, SIOCGSKNS), of_process = open_proc(pid, "ns/net");
  bool same = inode_of(own) && inode_of(own) == inode_of(of_process);
  if (own >= 0) close(own);
  if (of_process >= 0) close(of_process);
  return same;
}

uint64_t owner_of_network(int socket) {
  int network = ioctl(socket, SIOCGSKNS), owner = network < 0 ? -1 : ioctl(network, NS_GET_USERNS);
  uint64_t inode = inode_of(owner);
  if (network >= 0) close(network);
  if (owner >= 0) close(owner);
  return inode;
}

uint32_t local_address_in(pid_t pid, const struct network *network) {
  static char text[1 << 18];
  if (read_all(open_proc(pid, "net/fib_trie"), text, sizeof text) < 0) return 0;
  for (char *line = text; (line = strstr(line, "/32 host LOCAL"));) { /* the address is on the line before */
    *line++ = 0;
    char *address = strrchr(text, '-');
    struct in_addr ip;
    char word[INET_ADDRSTRLEN] = "";
    if (address && sscanf(address, "- %15[0-9.]", word) == 1 && inet_pton(AF_INET, word, &ip) == 1 &&
        within(network, ntohl(ip.s_addr)))
      return ntohl(ip.s_addr);
    *(line - 1) = '/';
  }
  return 0;
}
