// NIXL 0.9, 0.10 and 1.0 have the same api_version and three layouts of the engine. Two checks tell them apart without
// running code of the core. The first looks for a symbol that the core has since 1.0. The second compares the size of
// the engine's vtable, which the ELF symbols of NIXL's own plugins state; it also finds a later release that adds a
// virtual function.
#include "guard.h"

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "nixl_abi.h"

namespace ferry_nixl {
namespace {

// nixlAgent::prepMemView(const nixl_remote_dlist_t &, nixlMemViewH &, const nixl_opt_args_t *) const
const char SINCE_1_0[] = "_ZNK9nixlAgent11prepMemViewERK12nixlDescListI14nixlRemoteDescERPvPK21nixlAgentOptionalArgs";
const char VTABLE[] = "_ZTV17nixlBackendEngine";

// A file, mapped for reading. Every read is checked against its length, because the file may have any contents.
class File {
public:
    explicit File(const std::string &path)
    {
        const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        struct stat found{};
        if (fd < 0) return;
        if (fstat(fd, &found) == 0 && found.st_size > 0) {
            length = static_cast<std::size_t>(found.st_size);
            void *at = mmap(nullptr, length, PROT_READ, MAP_PRIVATE, fd, 0);
            bytes = at == MAP_FAILED ? nullptr : static_cast<const char *>(at);
        }
        close(fd);
    }
    ~File()
    {
        if (bytes != nullptr) munmap(const_cast<char *>(bytes), length);
    }
    File(const File &) = delete;
    File &operator=(const File &) = delete;

    // Copies element `index` of an array at `offset`; false if the element is not wholly in the file.
    template <typename T> bool read(std::uint64_t offset, std::uint64_t index, T &out) const
    {
        if (bytes == nullptr || offset > length || index >= (length - offset) / sizeof(T)) return false;
        std::memcpy(&out, bytes + offset + index * sizeof(T), sizeof(T));
        return true;
    }
    bool text_is(std::uint64_t offset, const char *text) const
    {
        const std::size_t size = std::strlen(text) + 1;
        return offset <= length && size <= length - offset && std::memcmp(bytes + offset, text, size) == 0;
    }

private:
    const char *bytes = nullptr;
    std::size_t length = 0;
};

// Returns the size of the vtable that a library defines, or 0.
std::uint64_t vtable_bytes(const std::string &path)
{
    const File file(path);
    ElfW(Ehdr) head;
    if (!file.read(0, 0, head) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return 0;
    ElfW(Shdr) symbols, names;
    for (unsigned section = 0; section < head.e_shnum; section++) {
        if (!file.read(head.e_shoff, section, symbols)) return 0;
        if (symbols.sh_type != SHT_DYNSYM || !file.read(head.e_shoff, symbols.sh_link, names)) continue;
        ElfW(Sym) symbol;
        for (std::uint64_t i = 0; i < symbols.sh_size / sizeof symbol && file.read(symbols.sh_offset, i, symbol); i++)
            if (symbol.st_shndx != SHN_UNDEF && file.text_is(names.sh_offset + symbol.st_name, VTABLE))
                return symbol.st_size;
    }
    return 0;
}

// Returns the size of the vtable in the first of NIXL's own plugins that defines it, or 0.
std::uint64_t siblings_vtable_bytes(const std::string &folder, const char *own)
{
    std::uint64_t found = 0;
    DIR *open_folder = opendir(folder.c_str());
    if (open_folder == nullptr) return 0;
    for (const dirent *entry = readdir(open_folder); entry != nullptr && found == 0; entry = readdir(open_folder)) {
        const std::string path = folder + "/" + entry->d_name;
        struct stat one{}, other{};
        const bool is_own = stat(path.c_str(), &one) == 0 && stat(own, &other) == 0 && one.st_ino == other.st_ino &&
                            one.st_dev == other.st_dev;
        if (std::strncmp(entry->d_name, "libplugin_", 10) == 0 && !is_own) found = vtable_bytes(path);
    }
    closedir(open_folder);
    return found;
}

} // namespace

std::string why_not(const void *caller)
{
    Dl_info core{}, self{};
    if (dladdr(caller, &core) == 0 || core.dli_fname == nullptr || dladdr(SINCE_1_0, &self) == 0)
        return "ferry does not know which library loads it, and serves NIXL 1.0.0 to 1.5.1 only";
    const std::string path = core.dli_fname;
    void *handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    const bool known = handle != nullptr && dlsym(handle, SINCE_1_0) != nullptr;
    if (handle != nullptr) dlclose(handle);
    if (!known)
        return path + " is no NIXL from 1.0.0 on: the interface of earlier releases differs under the same number. "
                      "Install nixl-cu12 1.0.0 or later";
    const std::uint64_t found = siblings_vtable_bytes(path.substr(0, path.rfind('/') + 1) + "plugins", self.dli_fname);
    if (found != 0 && found != NIXL_ENGINE_VTABLE_BYTES)
        return path + " is a NIXL whose plugins have another interface (a vtable of " + std::to_string(found) +
               " bytes instead of " + std::to_string(NIXL_ENGINE_VTABLE_BYTES) +
               "): this ferry serves NIXL 1.0.0 to 1.5.1. Install a newer ferry-nixl";
    return "";
}

} // namespace ferry_nixl
