// Package inspectiontest makes machines of text: what inspection reads of a machine, recorded by testdata/record.sh or written by hand,
// becomes a tree of files again. Only tests import it. Start with Unpack.
package inspectiontest

import (
	"cmp"
	"encoding/hex"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
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

// Unpack writes the tree below a folder of the test and returns it. Names may lead through links of the tree, as recorded ones do.
func (tree Tree) Unpack(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	links := Tree{}
	shortFirst := func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }
	for _, name := range slices.SortedFunc(maps.Keys(tree), shortFirst) { // what leads to a name is shorter
		real := path.Join(links.resolve(path.Dir(name)), path.Base(name))
		file := filepath.Join(root, real)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if target, isLink := strings.CutPrefix(tree[name], LinkTo); isLink && err == nil {
			links[real] = tree[name]
			if err = os.Symlink(target, file); err == nil {
				err = os.MkdirAll(filepath.Join(root, links.resolve(real)), 0o755)
			}
		} else if err == nil {
			err = os.WriteFile(file, []byte(tree[name]), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// resolve follows the links in a path, the last part included, as the kernel would.
func (tree Tree) resolve(name string) string {
	at := ""
	for part := range strings.SplitSeq(name, "/") {
		at = path.Join(at, part)
		if target, isLink := strings.CutPrefix(tree[at], LinkTo); isLink {
			at = tree.resolve(path.Join(path.Dir(at), target))
		}
	}
	return at
}
