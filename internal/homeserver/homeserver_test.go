package homeserver

import (
	"slices"
	"testing"
)

func TestTheExportsOfAServerAreItsArguments(t *testing.T) {
	for name, tc := range map[string]struct{ args, want []string }{
		"one that is being made":        {[]string{Name, "uuid", "0,1", "/", "/volumes/data"}, []string{"/", "/volumes/data"}},
		"one that serves":               {[]string{Name, "uuid", "0,1", "/", "/volumes/data", serving}, []string{"/", "/volumes/data"}},
		"one that serves nothing":       {[]string{Name, "uuid", "0,1", serving}, nil},
		"one without a name":            {[]string{Name}, nil},
		"a volume whose path is /serve": {[]string{Name, "uuid", "0,1", "/serve"}, []string{"/serve"}},
	} {
		if got := Exports(tc.args); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
