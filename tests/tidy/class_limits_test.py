"""class_limits counts what a class declares, and finds what is above the limits."""

import pathlib
import tempfile
import unittest

import class_limits

MANY_FUNCTIONS = "".join(f"  int f{i}(int a = 1, std::vector<int> b = {{}}) const {{ return a; }}\n" for i in range(26))
MANY_MEMBERS = "".join(f"  std::map<int, std::function<void(int)>> m{i}_ = {{1}};\n" for i in range(21))


class ClassLimitsTest(unittest.TestCase):
    def problems_of(self, text, above=None):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("swap/a.h", "tests/b.h"):
                path = pathlib.Path(folder, name)
                path.parent.mkdir()
                path.write_text(text)
            return list(class_limits.problems_of(pathlib.Path(folder), above or {}))

    def test_what_is_declared_is_counted(self):
        text = """
#pragma once
namespace forebay {
enum class Kind : int { kA, kB };
class Base;
// class Comment { int a; };
class Thing final : public Base<int>, private Other {
 public:
  using Other::Other;
  friend class Friend;
  explicit Thing(int a = F(1));
  Thing(const Thing&) = delete;
  ~Thing() override = default;
  bool operator==(const Thing&) const = default;
  template <typename T>
  absl::StatusOr<std::pair<int, T>> Get(const char* text = "a; (b") const { return a_ < 1 ? 1 : 2; }
  enum State { kOn, kOff };
  struct Inner { int x = 0; int y; };
  static constexpr int kMost = 3;
  int number = 0;
 private:
  void Hidden();
  std::function<void(int)> call_;
  std::array<int, 3> values_ = {1, 2}, more_{};
  Inner* const inner_ = nullptr;
};
}  // namespace forebay
"""
        thing, inner = class_limits.classes_of(text)
        self.assertEqual((thing.name, thing.num_public, thing.num_members), ("Thing", 4, 5))
        self.assertEqual((inner.name, inner.num_public, inner.num_members), ("Inner", 0, 2))

    def test_a_class_above_a_limit_is_found_in_production_headers(self):
        for text in (f"class A {{\n public:\n{MANY_FUNCTIONS}}};\n", f"class A {{\n public:\n  void f();\n private:\n{MANY_MEMBERS}}};\n"):
            (problem,) = self.problems_of(text)
            self.assertIn("swap/a.h: A has", problem)
            self.assertIn("at most 25 and 20", problem)

    def test_a_record_has_no_limit(self):
        self.assertEqual(self.problems_of(f"struct A {{\n{MANY_MEMBERS}  int Sum() const;\n}};\n"), [])

    def test_a_class_that_was_above_may_not_grow_and_its_row_follows_it_down(self):
        text = f"class A {{\n public:\n{MANY_FUNCTIONS}}};\n"
        self.assertEqual(self.problems_of(text, {("swap/a.h", "A"): (26, 0)}), [])
        self.assertIn("may not grow", *self.problems_of(text, {("swap/a.h", "A"): (26, -1)}))
        self.assertIn("lower its row", *self.problems_of(text, {("swap/a.h", "A"): (27, 0)}))
        self.assertIn("remove its row", *self.problems_of("class A {};\n", {("swap/a.h", "A"): (27, 0)}))
        self.assertIn("no B any more", *self.problems_of("class A {};\n", {("swap/a.h", "B"): (27, 0)}))


if __name__ == "__main__":
    unittest.main()
