// SPDX-License-Identifier: Apache-2.0
#include "client/preload/elf.h"

#include <string.h>

namespace gpumem::preload {
namespace {

// What the dynamic section says about an object's symbols.
struct Symbols {
  const ElfW(Sym) * table = nullptr;
  const char* strings = nullptr;
  const uint32_t* gnu_hash = nullptr;
  const uint32_t* sysv_hash = nullptr;
  const ElfW(Half) * versions = nullptr;
};

// The C library has made most addresses in the section absolute, but not those of every object
// (the vDSO's, for one).
uintptr_t Absolute(const LoadedObject& object, ElfW(Addr) address) {
  return address < object.base ? object.base + address : address;
}

Symbols SymbolsOf(const LoadedObject& object) {
  Symbols symbols;
  for (const ElfW(Dyn)* entry = object.dynamic; entry->d_tag != DT_NULL; ++entry) {
    uintptr_t address = Absolute(object, entry->d_un.d_ptr);
    switch (entry->d_tag) {
      case DT_SYMTAB:
        symbols.table = reinterpret_cast<const ElfW(Sym)*>(address);
        break;
      case DT_STRTAB:
        symbols.strings = reinterpret_cast<const char*>(address);
        break;
      case DT_GNU_HASH:
        symbols.gnu_hash = reinterpret_cast<const uint32_t*>(address);
        break;
      case DT_HASH:
        symbols.sysv_hash = reinterpret_cast<const uint32_t*>(address);
        break;
      case DT_VERSYM:
        symbols.versions = reinterpret_cast<const ElfW(Half)*>(address);
        break;
      default:
        break;
    }
  }
  return symbols;
}

// Collects the candidates for a name: a default version wins over a hidden one.
class Match {
 public:
  Match(const LoadedObject& object, const Symbols& symbols, const char* name)
      : object_(object), symbols_(symbols), name_(name) {}

  void Consider(uint32_t index) {
    const ElfW(Sym)& symbol = symbols_.table[index];
    // The macros are the same for both classes of ELF.
    if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) return;
    if (strcmp(symbols_.strings + symbol.st_name, name_) != 0) return;
    bool hidden = symbols_.versions != nullptr && (symbols_.versions[index] & 0x8000) != 0;
    if (found_ != nullptr && hidden) return;
    found_ = reinterpret_cast<void*>(object_.base + symbol.st_value);
    size_ = symbol.st_size;
  }

  void* found() const { return found_; }
  size_t size() const { return size_; }

 private:
  const LoadedObject& object_;
  const Symbols& symbols_;
  const char* name_;
  void* found_ = nullptr;
  size_t size_ = 0;
};

void SearchGnuHash(const Symbols& symbols, const char* name, Match* match) {
  uint32_t hash = 5381;
  for (const char* c = name; *c != '\0'; ++c) {
    hash = hash * 33 + static_cast<unsigned char>(*c);
  }
  const uint32_t buckets = symbols.gnu_hash[0];
  const uint32_t first = symbols.gnu_hash[1];
  const uint32_t bloom_words = symbols.gnu_hash[2];
  if (buckets == 0) return;
  const uint32_t* bucket =
      symbols.gnu_hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* chain = bucket + buckets;
  uint32_t index = bucket[hash % buckets];
  if (index < first) return;
  for (;; ++index) {
    uint32_t at = chain[index - first];
    if ((at | 1) == (hash | 1)) match->Consider(index);
    if ((at & 1) != 0) return;
  }
}

void SearchSysvHash(const Symbols& symbols, Match* match) {
  // All symbols, because the table is used only where there is no better one.
  const uint32_t count = symbols.sysv_hash[1];
  for (uint32_t index = 1; index < count; ++index) match->Consider(index);
}

LoadedObject Describe(const dl_phdr_info& info) {
  LoadedObject object;
  object.base = info.dlpi_addr;
  object.begin = UINTPTR_MAX;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info.dlpi_phdr[i];
    uintptr_t begin = info.dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_DYNAMIC) object.dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    if (header.p_type != PT_LOAD) continue;
    if (begin < object.begin) object.begin = begin;
    if (begin + header.p_memsz > object.end) object.end = begin + header.p_memsz;
  }
  if (info.dlpi_name != nullptr) strncpy(object.path, info.dlpi_name, sizeof(object.path) - 1);
  return object;
}

// One search over the loaded objects, in the order of loading.
struct Search {
  const char* prefix = nullptr;
  const void* address = nullptr;
  const char* name = nullptr;  // then: the first behind the object of `address` that defines it
  bool passed = false;
  LoadedObject* found = nullptr;
};

int Visit(dl_phdr_info* info, size_t, void* data) {
  Search* search = static_cast<Search*>(data);
  if (search->prefix != nullptr &&
      (info->dlpi_name == nullptr || !HasPrefix(BaseName(info->dlpi_name), search->prefix))) {
    return 0;
  }
  LoadedObject object = Describe(*info);
  if (object.dynamic == nullptr) return 0;
  if (search->name != nullptr) {
    if (!search->passed) {
      search->passed = object.contains(search->address);
      return 0;
    }
    if (FindFunction(object, search->name) == nullptr) return 0;
  } else if (search->address != nullptr && !object.contains(search->address)) {
    return 0;
  }
  *search->found = object;
  return 1;
}

}  // namespace

const char* BaseName(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

bool HasPrefix(const char* text, const char* prefix) {
  return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool DescribeObject(const dl_phdr_info& info, LoadedObject* object) {
  *object = Describe(info);
  return object->dynamic != nullptr;
}

bool FindLoadedObject(const char* prefix, LoadedObject* found) {
  Search search;
  search.prefix = prefix;
  search.found = found;
  return dl_iterate_phdr(Visit, &search) != 0;
}

bool FindObjectOf(const void* address, LoadedObject* found) {
  if (address == nullptr) return false;
  Search search;
  search.address = address;
  search.found = found;
  return dl_iterate_phdr(Visit, &search) != 0;
}

bool FindNextDefining(const void* caller, const char* name, LoadedObject* found) {
  Search search;
  search.address = caller;
  search.name = name;
  search.found = found;
  return dl_iterate_phdr(Visit, &search) != 0;
}

void* FindFunction(const LoadedObject& object, const char* name, size_t* size) {
  Symbols symbols = SymbolsOf(object);
  if (symbols.table == nullptr || symbols.strings == nullptr) return nullptr;
  Match match(object, symbols, name);
  if (symbols.gnu_hash != nullptr) {
    SearchGnuHash(symbols, name, &match);
  } else if (symbols.sysv_hash != nullptr) {
    SearchSysvHash(symbols, &match);
  }
  if (size != nullptr) *size = match.size();
  return match.found();
}

}  // namespace gpumem::preload
