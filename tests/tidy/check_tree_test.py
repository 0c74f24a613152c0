"""check_tree finds what it is there to find."""

import pathlib
import tempfile
import unittest

import check_tree

TABLE = """
<!-- arrows -->
| folder | may include | for |
|---|---|---|
| `base/` | | x |
| `swap/` | `base` | x |
| `swap/tiles/` | | x |
| `swap/store/` | `swap/tiles` | x |
| `model/` | `base` | x |
| `tools/` | `base` | x |

Text after the table.
"""
ROOMS = "".join(f"| `{room}/` | x |\n" for room in ("base", "swap", "model", "tools"))
MODULES = "set(FOREBAY_MODULES\n  base swap model tools)\n"


class CheckTreeTest(unittest.TestCase):
    def problems_of(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            usual = {"docs/design/folders.md": TABLE, "docs/architecture.md": ROOMS, "cmake/modules.cmake": MODULES}
            for name, contents in {**usual, **files}.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(contents)
            return check_tree.check_tree(root)

    def assert_one_problem(self, files, text):
        problems = self.problems_of(files)
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(text, problems[0])

    def test_a_tree_that_keeps_the_rules_has_no_problem(self):
        self.assertEqual(self.problems_of({
            "base/a.h": "#pragma once\n#include <vector>\n",
            "swap/b.cc": '#include "forebay/swap/b.h"\n\n#include "forebay/base/a.h"\n',
            "model/m.cc": '#include "oneapi/dnnl/dnnl.hpp"\n#include "hwy/highway.h"\n',
            "tools/main.cc": '#include "CLI/CLI.hpp"\n',
            "tests/swap/t.cc": '#include "forebay/model/m.h"\n#include "forebay/swap/b.h"\n',
        }), [])

    def test_an_arrow_that_is_not_in_the_table_is_found(self):
        self.assert_one_problem({"base/a.cc": 'int x;\n  #  include "forebay/swap/b.h"\n'},
                                "base/a.cc:2: base/ may not include swap/")

    def test_the_forbidden_arrow_from_model_to_swap_is_found(self):
        self.assert_one_problem({"model/cpu/m.h": '#pragma once\n#include "forebay/swap/b.h"\n'}, "model/cpu/m.h:2")

    def test_an_arrow_between_folders_of_a_module_is_in_the_table_or_found(self):
        tiles = '#include "forebay/swap/tiles/t.h"\n'
        store = '#include "forebay/swap/store/s.h"\n'
        self.assertEqual(self.problems_of({
            "swap/store/s.cc": tiles + store + '#include "forebay/base/a.h"\n',
            "tests/swap/tiles/t.cc": tiles + store,
        }), [])
        self.assert_one_problem({"swap/tiles/t.cc": store}, "swap/tiles/ may not include swap/store/")
        self.assert_one_problem({"swap/tiles/t.cc": '#include "forebay/model/m.h"\n'}, "swap/ may not include model/")
        self.assert_one_problem({"swap/b.cc": tiles}, "swap/ may not include swap/tiles/")
        self.assert_one_problem({"swap/other/t.cc": tiles}, "folder 'swap/other' is not in the table")

    def test_folders_that_include_each_other_are_found(self):
        table = TABLE.replace("| `base/` | |", "| `base/` | `tools` |")
        self.assert_one_problem({"docs/design/folders.md": table}, "base -> tools -> base")

    def test_a_third_party_header_outside_its_place_is_found(self):
        self.assert_one_problem({"swap/b.cc": '#include "oneapi/dnnl/dnnl.hpp"\n'}, "only be included in model/")
        self.assert_one_problem({"base/b.cc": '#include "hwy/highway.h"\n'}, "model/ and optimizer/")
        self.assert_one_problem({"base/b.cc": '#include "CLI/CLI.hpp"\n'}, "tools/")

    def test_a_macro_without_its_include_is_found(self):
        self.assert_one_problem({"swap/b.cc": "void F() { FOREBAY_CHECK(true); }\n"}, "forebay/base/check.h")
        self.assert_one_problem({"swap/b.cc": "  FOREBAY_ASSIGN_OR_RETURN(int x, G());\n"}, "forebay/base/errors.h")
        self.assertEqual(self.problems_of({
            "base/check.h": "#pragma once\n#define FOREBAY_CHECK(x) x\n#define OTHER() FOREBAY_CHECK(1)\n",
            "swap/b.cc": '#include "forebay/base/check.h"\n\nvoid F() { FOREBAY_CHECK(true); }\n',
            "swap/c.cc": "// as FOREBAY_CHECK(x) does\n",
        }), [])

    def test_another_spelling_of_our_headers_is_found(self):
        self.assert_one_problem({"base/a.h": "#pragma once\n", "base/b.cc": '#include "a.h"\n'}, "spell it")
        self.assert_one_problem({"base/a.cc": "#include <forebay/base/a.h>\n"}, "with quotes")

    def test_a_header_without_guard_is_found(self):
        self.assert_one_problem({"base/a.h": "int x;\n"}, "base/a.h: no '#pragma once'")
        self.assertEqual(self.problems_of({"model/cpu/a-inl.h": "int x;\n"}), [])

    def test_a_source_that_does_not_include_its_own_header_first_is_found(self):
        header = {"base/a.h": "#pragma once\n"}
        own = '#include "forebay/base/a.h"\n'
        self.assert_one_problem({**header, "base/a.cc": "#include <string>\n" + own}, "includes string first")
        self.assert_one_problem({**header, "base/a.cc": "int x;\n"}, "includes None first")
        self.assertEqual(self.problems_of({**header, "base/a.cc": "// A.\n" + own + "#include <string>\n"}), [])

    def test_a_long_line_a_tab_and_a_long_file_are_found(self):
        self.assert_one_problem({"base/a.cc": f"// {'x' * 98}\n"}, "base/a.cc:1: 101 columns")
        self.assert_one_problem({"base/a.cc": "\tint x;\n"}, "a tab")
        self.assert_one_problem({"base/a.cc": "\n" * 601}, "601 lines")
        self.assertEqual(self.problems_of({"base/a.cc": "\n" * 600}), [])

    def test_an_installed_header_that_includes_another_is_found(self):
        files = {"base/a.h": '#pragma once\n#include "forebay/base/b.h"\n', "base/b.h": "#pragma once\n",
                 "cmake/install.cmake": "set(FOREBAY_PUBLIC_HEADERS\n  base/a.h)\n"}
        self.assert_one_problem(files, "base/b.h, which is not")
        files["cmake/install.cmake"] = "set(FOREBAY_PUBLIC_HEADERS\n  base/a.h base/b.h)\n"
        self.assertEqual(self.problems_of(files), [])

    def test_a_folder_that_is_missing_from_the_list_of_modules_is_found(self):
        self.assert_one_problem({"cmake/modules.cmake": MODULES.replace(" tools", "")}, "'tools' is in only one of")
        self.assert_one_problem({"cmake/modules.cmake": MODULES.replace("tools", "tools other")}, "'other' is in only one")
        self.assert_one_problem({"other/a.cc": "int x;\n"}, "'other' has C++ sources")
        self.assertEqual(self.problems_of({"tests/a.cc": "int x;\n"}), [])

    def test_a_map_that_lacks_a_room_or_grows_is_found(self):
        self.assert_one_problem({"docs/architecture.md": ROOMS.replace("| `swap/` | x |\n", "")}, "no row for 'swap'")
        self.assert_one_problem({"docs/architecture.md": ROOMS + "\n" * 247}, "251 lines")
        self.assert_one_problem({"docs/architecture.md": ROOMS + "x" * 126}, "docs/architecture.md:5: 126 columns")
        self.assertEqual(self.problems_of({"docs/architecture.md": ROOMS + "\n" * 246}), [])

    def test_python_modules_that_import_each_other_are_found(self):
        package = {"python/pack/__init__.py": "from pack.a import A\n", "python/pack/b.py": "import os\nimport pack.a\n"}
        fine = {"python/pack/a.py": "def f():\n    from pack import b\n"}  # only when it is called
        self.assertEqual(self.problems_of({**package, **fine}), [])
        for text in ("from pack import b\n", "import pack.b\n", "if TYPE_CHECKING:\n    from pack.b import B\n"):
            self.assert_one_problem({**package, "python/pack/a.py": text}, "pack.a -> pack.b -> pack.a")

    def test_a_missing_table_is_an_error(self):
        with self.assertRaises(ValueError):
            self.problems_of({"docs/design/folders.md": "no table here"})
        with self.assertRaises(ValueError):
            self.problems_of({"docs/design/folders.md": "<!-- arrows -->\n\ntext\n"})


if __name__ == "__main__":
    unittest.main()
