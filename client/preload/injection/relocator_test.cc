// SPDX-License-Identifier: Apache-2.0
#include "client/preload/injection/relocator.h"

#include <sys/mman.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "client/preload/injection/patch.h"
#include "gtest/gtest.h"

#if defined(__x86_64__)
namespace gpumem::preload {
namespace {

// A function that takes one number and returns one, with its size. `end` is what comes behind it.
#define CODE_WITH_END(name, body, end)                                                \
  asm(".pushsection .text\n.p2align 4\n.type " #name ", @function\n" #name ":\n" body \
      "\n.size " #name ", .-" #name "\n" #name "_end:\n" end "\n.popsection\n");      \
  extern "C" const uint8_t name[];                                                    \
  extern "C" const uint8_t name##_end[];
#define CODE(name, body) CODE_WITH_END(name, body, ".p2align 4")

asm(".pushsection .data\n"
    "relocated_value: .quad 4711, 4712\n"
    "relocated_table: .quad relocated_helper\n"
    ".popsection\n");
// What others call or jump to.
CODE(relocated_helper, "lea 3(%rdi,%rdi), %rax\nret")

CODE(load, "mov relocated_value(%rip), %rax\nadd %rdi, %rax\nret")
CODE(store, "movl $5, relocated_value+8(%rip)\nmov relocated_value+8(%rip), %eax\nret")
CODE(compare, "cmpl $0x11, relocated_value(%rip)\nsetne %al\nmovzbl %al, %eax\nret")
CODE(vector, "movups relocated_value(%rip), %xmm0\nmovq %xmm0, %rax\nret")
CODE(address, "lea relocated_value(%rip), %rax\nret")
CODE(table, "jmp *relocated_table(%rip)")
CODE(short_forward, "test %rdi, %rdi\nje 1f\nmov $7, %eax\nret\n1: mov $8, %eax\nret")
CODE(short_sign, "test %rdi, %rdi\n{disp8} js 1f\nlea 1(%rdi), %rax\nret\n1: mov $-9, %rax\nret")
CODE(near_forward, "cmp $3, %rdi\n{disp32} ja 1f\nmov $1, %eax\nret\n1: mov $2, %eax\nret")
CODE(call, "sub $8, %rsp\ncall relocated_helper\nadd $8, %rsp\ninc %rax\nret")
CODE(thunk, "jmp relocated_helper")
CODE(short_jump, "{disp8} jmp 1f\nint3\nint3\nint3\n1: lea 40(%rdi), %rax\nret")
CODE(landing_pad, "endbr64\npush %rbx\nmov %rdi, %rbx\nlea 2(%rbx), %rax\npop %rbx\nret")
CODE(landing_thunk, "endbr64\njmp relocated_helper")
CODE(count_zero, "mov %rdi, %rcx\njrcxz 1f\nmov $1, %eax\nret\n1: mov $2, %eax\nret")
CODE(count_zero_32, "mov %edi, %ecx\njecxz 1f\nmov $1, %eax\nret\n1: mov $2, %eax\nret")
CODE(count_down, "mov %rdi, %rcx\nloop 1f\nmov $1, %eax\nret\n1: mov %rcx, %rax\nret")
CODE(count_equal,
     "cmp %eax, %eax\npush %rdi\npop %rcx\nloope 1f\nmov $1, %eax\nret\n1: mov %rcx, %rax\nret")
CODE(later_loop,
     "xor %eax, %eax\nmov %rdi, %rcx\nand $7, %ecx\n1: add $3, %eax\ndec %ecx\njns 1b\nret")
CODE(padded, "xor %eax, %eax\nret")
CODE_WITH_END(trapped, "xor %eax, %eax\nret", ".fill 13, 1, 0xCC")
CODE(long_instruction, "movabs $0x123456789abcdef0, %rax\nadd %rdi, %rax\nret")
// Its jump back is to code before it.
asm(".pushsection .text\n.p2align 4\nbefore_backward: mov $77, %eax\nret\n.popsection\n");
asm(".pushsection .text\n.type backward, @function\nbackward: test %rdi, %rdi\njs before_backward\n"
    "mov %rdi, %rax\nret\n.size backward, .-backward\nbackward_end:\n.p2align 4\n.popsection\n");
extern "C" const uint8_t backward[];
extern "C" const uint8_t backward_end[];
// n + (n - 1) + … + 1, by calls of itself.
CODE(recursive,
     "push %rbx\nmovzbl %dil, %ebx\nxor %eax, %eax\nand $7, %ebx\nje 1f\nlea -1(%rbx), %edi\n"
     "call recursive\n1: add %rbx, %rax\npop %rbx\nret")

CODE(loop_to_entry, "1: add $3, %rax\ndec %rdi\njnz 1b\nret")
CODE(loop_inside, "xor %eax, %eax\n1: add $3, %rax\ndec %rdi\njnz 1b\nret")
CODE(loop_from_far, "xor %eax, %eax\n1: add %rdi, %rax\n.fill 200, 1, 0x90\ndec %rdi\njnz 1b\nret")
CODE(loop_to_landing, "endbr64\n1: add %rdi, %rax\ndec %rdi\njnz 1b\nret")
CODE(jump_inside, ".byte 0xEB, 0\nmov $1, %eax\nret")
CODE(call_next, "call 1f\n1: pop %rax\nret")
CODE_WITH_END(too_short, "xor %eax, %eax\nret", "mov $1, %eax\nret\n.p2align 4")
// Its last four bytes are taken for a function, behind which another one may begin with a NOP.
CODE_WITH_END(short_before_another, ".fill 12, 1, 0x90\nlea 1(%rdi), %rax", ".fill 16, 1, 0x90")
CODE(unknown_first, ".byte 0x06\nmov $1, %eax\nret")
CODE(unknown_later, "mov $1, %eax\nret\n.byte 0x06")
CODE(transaction, ".byte 0xC7, 0xF8, 0, 0, 0, 0\nret")
CODE(narrow_jump, ".byte 0x66, 0xE9, 0, 0, 0, 0\nret")

struct Code {
  const char* name;
  const uint8_t* begin;
  const uint8_t* end;
};
#define ENTRY(name) \
  { #name, name, name##_end }

using Function = int64_t (*)(int64_t);
const int64_t kArguments[] = {0, 1, 2, 3, 4, 17, -1, -12345};

class Trampoline {
 public:
  explicit Trampoline(const Code& code, size_t capacity = 128) : size_(4096) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(code.begin);
    memory_ = AllocateNear(begin, begin + size_, size_);
    EXPECT_NE(memory_, nullptr);
    Relocate(code, capacity);
  }
  // At a given place.
  Trampoline(const Code& code, uint8_t* memory) : memory_(memory), size_(4096) {
    Relocate(code, 128);
  }
  ~Trampoline() { FreeNear(memory_, size_); }
  Trampoline(const Trampoline&) = delete;
  Trampoline& operator=(const Trampoline&) = delete;

  const char* why() const { return why_; }
  const GpumemRelocation& result() const { return result_; }
  uint8_t* memory() const { return memory_; }
  Function function() const { return reinterpret_cast<Function>(memory_); }
  bool MakeReady() const { return MakeExecutable(memory_, size_); }

 private:
  void Relocate(const Code& code, size_t capacity) {
    const uintptr_t end = reinterpret_cast<uintptr_t>(code.end);
    const size_t size = static_cast<size_t>(code.end - code.begin);
    const GpumemFunction function = {code.begin, size, size + (-end & 15), memory_, capacity};
    why_ = gpumem_relocate(&function, &result_);
  }

  uint8_t* memory_;
  size_t size_;
  GpumemRelocation result_ = {};
  const char* why_ = nullptr;
};

std::string NameOf(const ::testing::TestParamInfo<Code>& info) { return info.param.name; }

class MovedTest : public ::testing::TestWithParam<Code> {};

// What a patched function does here: 1000 more than the trampoline.
Function g_original = nullptr;
int g_depth = 0;
int64_t Replacement(int64_t argument) {
  ++g_depth;
  const int64_t result = g_original(argument);
  // The inner calls of a recursive function come here, too.
  return --g_depth == 0 ? result + 1000 : result;
}

TEST_P(MovedTest, DoesWhatTheFunctionDoes) {
  const Code& code = GetParam();
  const auto function = reinterpret_cast<Function>(reinterpret_cast<uintptr_t>(code.begin));
  std::vector<int64_t> plain;
  for (const int64_t argument : kArguments) plain.push_back(function(argument));

  Trampoline trampoline(code);
  ASSERT_EQ(trampoline.why(), nullptr) << trampoline.why();
  EXPECT_GE(trampoline.result().displaced, 5u);
  // The jump to the replacement, which is far away from the function on some machines.
  uint8_t* jump = trampoline.memory() + 256;
  const uint8_t opcode[] = {0xFF, 0x25, 0, 0, 0, 0};
  void* target = reinterpret_cast<void*>(&Replacement);
  memcpy(jump, opcode, sizeof(opcode));
  memcpy(jump + sizeof(opcode), &target, sizeof(target));
  ASSERT_TRUE(trampoline.MakeReady());
  std::vector<int64_t> moved;
  for (const int64_t argument : kArguments) moved.push_back(trampoline.function()(argument));
  EXPECT_EQ(moved, plain);

  g_original = trampoline.function();
  Edit edit;
  edit.at = const_cast<uint8_t*>(code.begin) + trampoline.result().kept;
  edit.size = 5;
  edit.bytes[0] = 0xE9;
  const int32_t distance = static_cast<int32_t>(jump - (edit.at + 5));
  memcpy(edit.bytes + 1, &distance, sizeof(distance));
  Edit undo = edit;
  memcpy(undo.bytes, edit.at, undo.size);
  ASSERT_EQ(EditCode(&edit, 1), Edited::kAll);
  std::vector<int64_t> patched;
  for (const int64_t argument : kArguments) patched.push_back(function(argument) - 1000);
  ASSERT_EQ(EditCode(&undo, 1), Edited::kAll);
  EXPECT_EQ(patched, plain);
}

INSTANTIATE_TEST_SUITE_P(
    All, MovedTest,
    ::testing::Values(Code ENTRY(load), Code ENTRY(store), Code ENTRY(compare), Code ENTRY(vector),
                      Code ENTRY(address), Code ENTRY(table), Code ENTRY(short_forward),
                      Code ENTRY(short_sign), Code ENTRY(near_forward), Code ENTRY(call),
                      Code ENTRY(thunk), Code ENTRY(short_jump), Code ENTRY(landing_pad),
                      Code ENTRY(landing_thunk), Code ENTRY(count_zero), Code ENTRY(count_zero_32),
                      Code ENTRY(count_down), Code ENTRY(count_equal), Code ENTRY(later_loop),
                      Code ENTRY(padded), Code ENTRY(trapped), Code ENTRY(long_instruction),
                      Code ENTRY(backward), Code ENTRY(recursive)),
    NameOf);

TEST(RelocatorTest, KeepsALandingPad) {
  EXPECT_EQ(Trampoline(Code ENTRY(landing_pad)).result().kept, 4u);
  EXPECT_EQ(Trampoline(Code ENTRY(landing_thunk)).result().kept, 4u);
  EXPECT_EQ(Trampoline(Code ENTRY(load)).result().kept, 0u);
}

TEST(RelocatorTest, RefusesWhatItCannotReplaceSafely) {
  const std::vector<std::pair<Code, std::string>> refused = {
      {ENTRY(loop_to_entry), "jumps back to its beginning"},
      {ENTRY(loop_inside), "jumps back to its beginning"},
      {ENTRY(loop_from_far), "jumps back to its beginning"},
      {ENTRY(loop_to_landing), "jumps back to its beginning"},
      {ENTRY(jump_inside), "jumps back to its beginning"},
      {ENTRY(call_next), "calls the next instruction"},
      {ENTRY(too_short), "is too short"},
      {ENTRY(unknown_first), "begins with an unknown instruction"},
      {ENTRY(unknown_later), "has an unknown instruction"},
      {ENTRY(transaction), "begins with an unknown kind of branch"},
      {ENTRY(narrow_jump), "begins with an unknown kind of branch"},
      {{"cut", load, load + 3}, "has a wrong size"},
      {{"empty", load, load}, "has no size"},
      {{"one", padded, padded + 1}, "has a wrong size"},
  };
  for (const auto& [code, why] : refused) {
    Trampoline trampoline(code);
    EXPECT_STREQ(trampoline.why(), why.c_str()) << code.name;
  }
}

TEST(RelocatorTest, PaddingEndsAtTheNextFunction) {
  const Code last = {"last", short_before_another + 12, short_before_another_end};
  ASSERT_EQ(reinterpret_cast<uintptr_t>(last.end) % 16, 0u);
  EXPECT_STREQ(Trampoline(last).why(), "is too short");
}

TEST(RelocatorTest, RefusesATrampolineThatIsTooShortOrTooFar) {
  EXPECT_STREQ(Trampoline(Code ENTRY(long_instruction), 9).why(), "needs a longer trampoline");
  EXPECT_STREQ(Trampoline(Code ENTRY(long_instruction), 14).why(), "needs a longer trampoline");
  EXPECT_EQ(Trampoline(Code ENTRY(long_instruction), 15).why(), nullptr);
  const uintptr_t far =
      (reinterpret_cast<uintptr_t>(load) + (uintptr_t{1} << 33)) & ~uintptr_t{4095};
  void* memory = mmap(reinterpret_cast<void*>(far), 4096, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(memory, reinterpret_cast<void*>(far));
  EXPECT_STREQ(Trampoline(Code ENTRY(load), static_cast<uint8_t*>(memory)).why(),
               "uses memory too far away");
  memory = mmap(reinterpret_cast<void*>(far), 4096, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(memory, reinterpret_cast<void*>(far));
  EXPECT_STREQ(Trampoline(Code ENTRY(thunk), static_cast<uint8_t*>(memory)).why(), "jumps too far");
}

}  // namespace
}  // namespace gpumem::preload
#endif
