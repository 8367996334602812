package recipe_test

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

var update = flag.Bool("update", false, "write the expected results instead of comparing")

// TestFiles reads every testdata/NAME.good.yaml and NAME.bad.yaml: the normal form, or the message, stands in NAME...want.
func TestFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r, err := recipe.Parse(text)
			if good := strings.Contains(file, ".good."); (err == nil) != good {
				t.Fatalf("error %v, but the file's name says otherwise", err)
			}
			got := ""
			if err != nil {
				got = err.Error() + "\n"
			} else {
				form, err := json.MarshalIndent(r, "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				got = string(form) + "\n" + r.Digest() + "\n"
			}
			if *update {
				if err := os.WriteFile(file+".want", []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file + ".want")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func parse(t *testing.T, text string) *recipe.Recipe {
	t.Helper()
	r, err := recipe.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTheDigestFollowsWhatIsMadeAndNothingElse(t *testing.T) {
	const text = "name: a\nbase: {debian: bookworm}\npackages: [gcc, make]\n"
	text1 := parse(t, text).Digest()
	for _, same := range []string{
		"# a comment\n" + text, "packages: [make, gcc, make]\nname: \"a\"\nbase:\n  debian: bookworm\n",
		text + "stacks: [container]\nroot: {format: erofs}\nkernel: {package: none}\n",
	} {
		if parse(t, same).Digest() != text1 {
			t.Errorf("%s has another digest", same)
		}
	}
	for _, other := range []string{
		text + "commands: ['true']\n", text + "description: x\n", strings.Replace(text, "bookworm", "trixie", 1), text + "root: {format: squashfs}\n",
		text + "files: [{path: /a, content: ''}]\n", text + "requirements: {memory: 1GiB}\n",
	} {
		if parse(t, other).Digest() == text1 {
			t.Errorf("%s has the same digest", other)
		}
	}
	layer := parse(t, "name: l\nbase: {environment: a}\nlayers: [b]\n")
	one, two := layer.DigestOn(map[string]string{"a": "1", "b": "2"}), layer.DigestOn(map[string]string{"a": "1", "b": "3"})
	if one == two || one == layer.Digest() {
		t.Error("the digest of a layer does not follow its base")
	}
	if needs := layer.Needs(); !cmp.Equal(needs, []string{"a", "b"}) {
		t.Errorf("needs %v", needs)
	}
	if parse(t, text).Local() || !parse(t, "name: a\nbase: {directory: d}\n").Local() || !parse(t, text+"files: [{path: /a, source: s}]\n").Local() {
		t.Error("what is taken from the builder node is not told")
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := recipe.Parse([]byte(text))
		if err != nil {
			var invalid *manifest.Invalid
			if !errors.As(err, &invalid) || len(invalid.Problems) == 0 {
				t.Fatalf("%v is no list of problems", err)
			}
			return
		}
		form, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := recipe.Parse(form) // JSON is YAML
		if err != nil {
			t.Fatalf("the normal form is refused: %v\n%s", err, form)
		}
		again.CommandLines = r.CommandLines // of another text
		if diff := cmp.Diff(r, again); diff != "" || r.Digest() != again.Digest() {
			t.Fatalf("the normal form is none:\n%s", diff)
		}
	})
}
