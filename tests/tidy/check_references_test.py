"""check_references finds what it is there to find."""

import pathlib
import tempfile
import unittest

import check_references

HEADER = {"swap/store/open.h": "int x;\n"}


class CheckReferencesTest(unittest.TestCase):
    def problems_of(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, contents in {**HEADER, **files}.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(contents)
            return check_references.check_references(root.resolve())

    def test_every_way_to_name_a_file_that_exists_is_none(self):
        self.assertEqual(self.problems_of({
            "base/a.h": "// As swap/store/open.h, store/open.h or open.h; forebay/swap/store/open.h too.\n",
            "docs/page.md": "[text](../swap/store/open.h) and `open.h`\n",
            "tools/a.py": '"""As open.h."""\n# open.h\nx = "no.h"\n',
        }), [])

    def test_a_name_without_a_file_is_found_in_comments_docstrings_and_pages(self):
        for name, text in {"base/a.cc": "int x;  // see {}\n", "base/b.cu": "// ({})\n", "docs/page.md": "`{}`\n",
                           "tools/a.py": '"""As {}."""\n', "tools/b.py": "x = 1  # {}\n",
                           "tools/c.py": 'def f():\n    """Text.\n\n    {}: what."""\n'}.items():
            for missing in ("swap/store/close.h", "store/close.h", "close.h", "swap/open.h", "swap/no.py"):
                problems = self.problems_of({name: text.replace("{}", missing)})
                self.assertEqual(len(problems), 1, (name, missing, problems))
                self.assertRegex(problems[0], rf"^{name}:\d+: there is no {missing}$")

    def test_what_is_not_ours_is_left_alone(self):
        self.assertEqual(self.problems_of({
            "base/a.h": "// linux/fs.h, hwy/foreach_target.h, <vector.h>, names.{h,cc}, x_test.cc\nint no_h = a.h;\n",
            "build/a.h": "// no.h\n",
        }), [])


if __name__ == "__main__":
    unittest.main()
