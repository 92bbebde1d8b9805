/* A plugin of a NIXL whose engines have a vtable of BYTES bytes. Only its ELF symbol matters. */
char _ZTV17nixlBackendEngine[BYTES] = {1};
