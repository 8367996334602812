// Package inspectiontest makes machines of text: what inspection reads of a machine, recorded by testdata/record.sh or written by hand,
// becomes a tree of files again. Only tests import it. Start with Unpack.
package inspectiontest

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Tree is a machine's files by their path; a value beginning with LinkTo is a symbolic link.
type Tree map[string]string

// LinkTo begins the value of a symbolic link.
const LinkTo = "-> "

// Read reads a recorded tree: "== PATH" and the file's lines, "== PATH hex" and its bytes, "== PATH -> TARGET".
func Read(t testing.TB, file string) Tree {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tree := Tree{}
	for part := range strings.SplitSeq("\n"+string(text), "\n== ") {
		head, content, _ := strings.Cut(part, "\n")
		name, target, isLink := strings.Cut(head, " -> ")
		bare, isHex := strings.CutSuffix(name, " hex")
		switch {
		case strings.TrimSpace(head) == "" || strings.HasPrefix(head, "#"):
		case isLink:
			tree[name] = LinkTo + target
		case isHex:
			data, err := hex.DecodeString(strings.Join(strings.Fields(content), ""))
			if err != nil {
				t.Fatalf("%s: %s: %v", file, bare, err)
			}
			tree[bare] = string(data)
		default:
			tree[name] = content + "\n"
		}
	}
	return tree
}

// Unpack writes the tree below a folder of the test and returns it.
func (tree Tree) Unpack(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range tree {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, isLink := strings.CutPrefix(content, LinkTo); isLink {
			err = os.Symlink(target, file)
		} else {
			err = os.WriteFile(file, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}
