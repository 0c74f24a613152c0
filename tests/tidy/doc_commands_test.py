"""doc_commands finds blocks that nothing runs and links that lead nowhere."""

import pathlib
import tempfile
import unittest

import doc_commands


class DocCommandsTest(unittest.TestCase):
    def problems_of(self, readme, test_script=""):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "scripts").mkdir()
            (root / "scripts" / "test").write_text(test_script)
            (root / "CONTRIBUTING.md").write_text("")
            (root / "README.md").write_text(readme)
            return list(doc_commands.problems_of(root))

    def test_marked_blocks_and_working_links_are_fine(self):
        self.assertEqual(self.problems_of(
            "See [this](docs) and [that](https://example.org).\n"
            "<!-- run: test -->\n```sh\nforebay version\n```\n\n"
            "<!-- run: scripts/test -->\n```sh\nscripts/test --full  # all\n```\n"), [])

    def test_an_unmarked_block_is_found(self):
        self.assertEqual(len(self.problems_of("text\n\n```sh\nforebay version\n```\n")), 1)

    def test_a_program_that_is_not_there_is_found(self):
        self.assertIn("is not there", self.problems_of("<!-- run: scripts/no -->\n```sh\nscripts/no\n```\n")[0])

    def test_a_command_that_the_named_program_does_not_run_is_found(self):
        self.assertIn("is not run by", self.problems_of("<!-- run: scripts/test -->\n```sh\nrm x\n```\n")[0])

    def test_a_program_is_the_source_that_it_is_said_to_be(self):
        with_source = "<!-- source: scripts/test -->\n```cpp\n{}```\n"
        self.assertEqual(self.problems_of(with_source.format("")), [])
        self.assertIn("differs from", self.problems_of(with_source.format("int x;\n"))[0])
        self.assertIn("which source", self.problems_of("```cpp\nint x;\n```\n")[0])
        self.assertIn("is not there", self.problems_of("<!-- source: no.cc -->\n```cpp\n```\n")[0])

    def test_a_program_that_is_not_built_by_what_is_run_first_is_found(self):
        readme = "<!-- run: scripts/test -->\n```sh\nscripts/test\n```\nThen `build/bin/one` and `build/bin/two DIR`.\n"
        for build in ("scripts/build", "scripts/build release -- --target one two", "scripts/build asan -- --target one"):
            self.assertEqual(self.problems_of(readme, build), [])
        (problem,) = self.problems_of(readme, "scripts/build -- --target one\n")
        self.assertIn("scripts/test does not build build/bin/two", problem)

    def test_a_link_that_leads_nowhere_is_found(self):
        self.assertIn("docs/no.md", self.problems_of("[x](docs/no.md#part)")[0])


if __name__ == "__main__":
    unittest.main()
