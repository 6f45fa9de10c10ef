// SPDX-License-Identifier: Apache-2.0
#include "client/preload/injection/relocator.h"

#include <string.h>

#if defined(__x86_64__)
#include <Zydis/Zydis.h>

namespace gpumem::preload {
namespace {

constexpr size_t kJump = 5;        // E9 and 32 bits
constexpr size_t kAlignment = 16;  // of functions, if they are aligned

uint64_t AddressOf(const uint8_t* code) { return reinterpret_cast<uint64_t>(code); }

// Writes the distance that the processor adds to the address `from`. False if it is too far.
bool PutDistance(uint8_t* at, uint64_t target, uint64_t from) {
  const int64_t distance = static_cast<int64_t>(target - from);
  const int32_t near = static_cast<int32_t>(distance);
  if (near != distance) return false;
  memcpy(at, &near, sizeof(near));
  return true;
}

// Reads one function, and writes its trampoline.
class Relocator {
 public:
  Relocator(const GpumemFunction& function, GpumemRelocation* result)
      : function_(function), result_(*result) {
    ZydisDecoderInit(&decoder_, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
    result_ = {0, 0, 0};
  }

  const char* Run() {
    if (const char* why = Measure()) return why;
    if (const char* why = CheckBranches()) return why;
    for (size_t at = result_.kept; at < end_;) {
      ZydisDecodedInstruction instruction;
      Decode(at, &instruction);
      if (const char* why = Move(at, instruction)) return why;
      at += instruction.length;
    }
    return PutJump(AddressOf(function_.code + end_));
  }

 private:
  bool Decode(size_t at, ZydisDecodedInstruction* instruction) const {
    return ZYAN_SUCCESS(ZydisDecoderDecodeInstruction(&decoder_, nullptr, function_.code + at,
                                                      function_.readable - at, instruction));
  }

  static bool IsBranch(const ZydisDecodedInstruction& instruction) {
    return (instruction.attributes & ZYDIS_ATTRIB_IS_RELATIVE) != 0 &&
           instruction.raw.imm[0].is_relative;
  }

  uint64_t TargetOf(size_t at, const ZydisDecodedInstruction& instruction) const {
    return AddressOf(function_.code + at) + instruction.length +
           static_cast<uint64_t>(instruction.raw.imm[0].value.s);
  }

  // Finds the instructions that the jump is written over. A function that is too short may be
  // followed by padding, which belongs to no function, up to the alignment.
  const char* Measure() {
    ZydisDecodedInstruction instruction;
    size_t at = 0;
    if (function_.size == 0) return "has no size";
    if (Decode(0, &instruction) && instruction.mnemonic == ZYDIS_MNEMONIC_ENDBR64) {
      at = result_.kept = instruction.length;
    }
    while (at < result_.kept + kJump) {
      if (at >= function_.size && (AddressOf(function_.code + at) % kAlignment == 0)) {
        return "is too short";
      }
      if (at >= function_.readable || !Decode(at, &instruction)) {
        return at < function_.size ? "begins with an unknown instruction" : "is too short";
      }
      const bool padding =
          instruction.mnemonic == ZYDIS_MNEMONIC_NOP || instruction.mnemonic == ZYDIS_MNEMONIC_INT3;
      if (at >= function_.size && !padding) return "is too short";
      if (!padding && at + instruction.length > function_.size) return "has a wrong size";
      at += instruction.length;
    }
    end_ = at;
    result_.displaced = end_ - result_.kept;
    return nullptr;
  }

  // Refuses a function that jumps to its beginning: registers have other contents there than at a
  // call. Targets in tables are not known; compilers make tables for switches, whose cases come
  // after the code that reads the table.
  const char* CheckBranches() const {
    ZydisDecodedInstruction instruction;
    const uint64_t begin = AddressOf(function_.code);
    for (size_t at = 0; at < function_.size; at += instruction.length) {
      if (!Decode(at, &instruction)) return "has an unknown instruction";
      if (!IsBranch(instruction)) continue;
      const uint64_t target = TargetOf(at, instruction);
      const bool is_call = instruction.mnemonic == ZYDIS_MNEMONIC_CALL;
      if (is_call && target == begin) continue;
      if (target >= begin && target < begin + end_) return "jumps back to its beginning";
      // It would read its address from the stack.
      if (is_call && at < end_ && target == AddressOf(function_.code + at) + instruction.length) {
        return "calls the next instruction";
      }
    }
    return nullptr;
  }

  const char* Move(size_t at, const ZydisDecodedInstruction& instruction) {
    const uint8_t* code = function_.code + at;
    if (IsBranch(instruction)) return MoveBranch(code, TargetOf(at, instruction), instruction);
    uint8_t* moved = Reserve(instruction.length);
    if (moved == nullptr) return "needs a longer trampoline";
    memcpy(moved, code, instruction.length);
    if ((instruction.attributes & ZYDIS_ATTRIB_IS_RELATIVE) == 0) return nullptr;
    if (instruction.raw.disp.size != 32) return "begins with an unknown kind of address";
    const uint64_t target =
        AddressOf(code) + instruction.length + static_cast<uint64_t>(instruction.raw.disp.value);
    return PutDistance(moved + instruction.raw.disp.offset, target,
                       AddressOf(moved) + instruction.length)
               ? nullptr
               : "uses memory too far away";
  }

  // Branches get a distance of 32 bits.
  const char* MoveBranch(const uint8_t* code, uint64_t target,
                         const ZydisDecodedInstruction& instruction) {
    // Others than hints change what the branch does.
    for (int i = 0; i < instruction.raw.prefix_count; ++i) {
      const uint8_t prefix = instruction.raw.prefixes[i].value;
      const bool counts = instruction.mnemonic == ZYDIS_MNEMONIC_JECXZ && prefix == 0x67;
      if (prefix != 0x2E && prefix != 0x3E && prefix != 0xF2 && !counts) {
        return "begins with an unknown kind of branch";
      }
    }
    switch (instruction.mnemonic) {
      case ZYDIS_MNEMONIC_JMP:
        return PutJump(target);
      case ZYDIS_MNEMONIC_CALL:
        return PutBranch(0, 0xE8, target);
      case ZYDIS_MNEMONIC_JCXZ:
      case ZYDIS_MNEMONIC_JECXZ:
      case ZYDIS_MNEMONIC_JRCXZ:
      case ZYDIS_MNEMONIC_LOOP:
      case ZYDIS_MNEMONIC_LOOPE:
      case ZYDIS_MNEMONIC_LOOPNE:
        return PutShortOnly(code, instruction.length, target);
      default:
        break;
    }
    // The condition is the same in both forms.
    const uint8_t opcode = instruction.opcode;
    const bool is_short =
        instruction.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT && opcode >= 0x70 && opcode <= 0x7F;
    const bool is_near =
        instruction.opcode_map == ZYDIS_OPCODE_MAP_0F && opcode >= 0x80 && opcode <= 0x8F;
    if (!is_short && !is_near) return "begins with an unknown kind of branch";
    return PutBranch(0x0F, static_cast<uint8_t>(0x80 | (opcode & 0x0F)), target);
  }

  // These have no form with 32 bits: they jump over a jump that is taken otherwise.
  const char* PutShortOnly(const uint8_t* code, size_t length, uint64_t target) {
    uint8_t* moved = Reserve(length + 2);
    if (moved == nullptr) return "needs a longer trampoline";
    memcpy(moved, code, length);
    moved[length - 1] = 2;
    moved[length] = 0xEB;
    moved[length + 1] = kJump;
    return PutJump(target);
  }

  const char* PutJump(uint64_t target) { return PutBranch(0, 0xE9, target); }

  // escape: the first byte of an opcode of two, or 0.
  const char* PutBranch(uint8_t escape, uint8_t opcode, uint64_t target) {
    const size_t length = (escape != 0 ? 2 : 1) + sizeof(int32_t);
    uint8_t* moved = Reserve(length);
    if (moved == nullptr) return "needs a longer trampoline";
    uint8_t* at = moved;
    if (escape != 0) *at++ = escape;
    *at++ = opcode;
    return PutDistance(at, target, AddressOf(moved) + length) ? nullptr : "jumps too far";
  }

  uint8_t* Reserve(size_t bytes) {
    if (bytes > function_.capacity - result_.written) return nullptr;
    uint8_t* at = function_.trampoline + result_.written;
    result_.written += bytes;
    return at;
  }

  const GpumemFunction& function_;
  GpumemRelocation& result_;
  ZydisDecoder decoder_;
  size_t end_ = 0;  // of the displaced instructions
};

}  // namespace
}  // namespace gpumem::preload

const char* gpumem_relocate(const GpumemFunction* function, GpumemRelocation* result) {
  return gpumem::preload::Relocator(*function, result).Run();
}

#else

const char* gpumem_relocate(const GpumemFunction*, GpumemRelocation*) {
  return "is for a processor whose code cannot be relocated";
}

#endif
