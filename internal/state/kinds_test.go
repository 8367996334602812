package state

import (
	"os"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestEveryKindIsInTheFixtureOfTheStoredState(t *testing.T) {
	text, err := os.ReadFile("testdata/state.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		key, _, _ := strings.Cut(line, " ")
		prefix, _ := splitKey(key)
		seen[prefix] = true
	}
	known := map[string]bool{}
	for _, r := range kinds {
		if !seen[r.at()] {
			t.Errorf("nothing in testdata/state.txt is under %q; let writeEveryKind write it", r.at())
		}
		if known[r.at()] {
			t.Errorf("%q is registered twice", r.at())
		}
		known[r.at()] = true
	}
}

func TestOnlyWhatIsRegisteredCanBeWritten(t *testing.T) {
	for name, write := range map[string]func(){
		"a prefix without a registration": func() { put("stranger/x", api.Job{}) },
		"a value of another kind":         func() { put(prefixNode+"n1", api.Job{}) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it was written")
				}
			}()
			write()
		})
	}
}
