/* A stand-in for nvidia-smi: lists the GPUs that its library can open, as `nvidia-smi -L` does. */
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!library) {
    printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system: %s\n", dlerror());
    return 12;
  }
  int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
  int (*get_count)(unsigned *) = (int (*)(unsigned *))dlsym(library, "nvmlDeviceGetCount_v2");
  int (*get_uuid)(unsigned, char *, unsigned) =
      (int (*)(unsigned, char *, unsigned))dlsym(library, "nvmlDeviceGetUUID");
  unsigned count = 0;
  if (init()) {
    puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.");
    return 9;
  }
  get_count(&count);
  for (unsigned i = 0; i < count; i++) {
    char uuid[64];
    if (!get_uuid(i, uuid, sizeof uuid)) printf("GPU %u: NVIDIA Stand-in (UUID: %s)\n", i, uuid);
  }
  if (!count) puts("No devices were found");
  return count ? 0 : 6;
}
