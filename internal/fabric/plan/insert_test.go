package plan

import (
	"strings"
	"testing"
)

func TestRulesAreInsertedAtTheOnlyPlaceThatIsMeant(t *testing.T) {
	const text = "chain a {\n\taccept\n}\nchain b {\n\taccept\n}\n"
	if got, want := insertBefore(text, "chain b", "chain c {\n}\n"), "chain a {\n\taccept\n}\nchain c {\n}\nchain b {\n\taccept\n}\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for place, count := range map[string]string{"\taccept\n": "2 times", "chain d": "0 times"} {
		func() {
			defer func() {
				if problem, _ := recover().(string); !strings.Contains(problem, count) {
					t.Errorf("before %q: got %q, want a panic that says %s", place, problem, count)
				}
			}()
			insertBefore(text, place, "drop\n")
		}()
	}
}
