// symbols LIBRARY NAME…: prints a line for each name: whether dlsym finds it.
#include <cstdio>
#include <dlfcn.h>

int main(int count, char **arguments) {
    if (count < 2) return 2;
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    for (int i = 2; i < count; i++) printf("%s %s\n", arguments[i], dlsym(library, arguments[i]) ? "yes" : "no");
    return 0;
}
