/* A stand-in for the libraries of NVIDIA's driver: libcuda and libnvidia-ml, as far as tests ask them something.

   A GPU is a device file /dev/nvidiaN that can be opened; no driver is behind it, so that ENXIO is as good. Its UUID
   follows from the device number, which is another on every host. Like NVML it has an order of its own. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define MAX_GPUS 16
#define UUID_SIZE 48

static struct {
  char uuid[UUID_SIZE];
  unsigned number;
} gpus[MAX_GPUS];
static unsigned count;

static void find_gpus(void) {
  count = 0;
  for (int number = MAX_GPUS - 1; number >= 0; number--) {
    char path[32];
    struct stat about;
    snprintf(path, sizeof path, "/dev/nvidia%d", number);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
      close(fd);
    else if (errno != ENXIO)
      continue;
    if (stat(path, &about) || !S_ISCHR(about.st_mode)) continue;
    snprintf(gpus[count].uuid, UUID_SIZE, "GPU-66616b65-0000-4000-8000-%012x", minor(about.st_rdev));
    gpus[count++].number = number;
  }
}

/* NVML: every GPU that can be opened. */
int nvmlInit_v2(void) {
  int fd = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
  if (fd < 0 && errno != ENXIO) return 9; /* the driver is not loaded */
  if (fd >= 0) close(fd);
  find_gpus();
  return 0;
}

int nvmlDeviceGetCount_v2(unsigned *found) {
  *found = count;
  return 0;
}

int nvmlDeviceGetUUID(unsigned index, char *uuid, unsigned size) {
  if (index >= count) return 2;
  snprintf(uuid, size, "%s", gpus[index].uuid);
  return 0;
}

int nvmlDeviceGetMinorNumber(unsigned index, unsigned *number) {
  if (index >= count) return 2;
  *number = gpus[index].number;
  return 0;
}

/* CUDA: of these, those that CUDA_VISIBLE_DEVICES names by their UUIDs. */
int cuInit(unsigned flags) {
  (void)flags;
  if (nvmlInit_v2()) return 100; /* no device */
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  unsigned kept = 0;
  for (unsigned i = 0; i < count; i++)
    if (!visible || strstr(visible, gpus[i].uuid)) gpus[kept++] = gpus[i];
  count = kept;
  return count ? 0 : 100;
}

int cuDeviceGetCount(int *found) {
  *found = (int)count;
  return 0;
}
