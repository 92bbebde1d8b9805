/* Uses libibverbs itself, beside ferry, which opens it at run time: neither is in the other's way. */
#include <ferry.h>

#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    ferry_engine *engine;
    ferry_error error = {.struct_size = sizeof error};
    if (devices != NULL) ibv_free_device_list(devices);
    if (ferry_engine_open(NULL, &engine, &error) != FERRY_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    ferry_engine_free(engine);
    printf("ferry %s beside libibverbs\n", ferry_version());
    return 0;
}
