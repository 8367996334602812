package tenancy

import (
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestATokenMayDoWhatItsVerbsSay(t *testing.T) {
	t.Parallel()
	admin, member := api.RoleAdmin, api.RoleMember
	for _, tt := range []struct {
		role  api.Role
		verbs []Verb
		verb  Verb
		want  string
	}{
		{member, nil, Change, ""},
		{member, []Verb{Read}, Read, ""},
		{member, []Verb{Read, Run}, Run, ""},
		{member, []Verb{Read, Run}, Change, `the token of "ann" lacks the verb "change": it is limited to read, run; use a token with that verb`},
		{member, []Verb{Read}, Run, `the token of "ann" lacks the verb "run": it is limited to read; use a token with that verb`},
		{member, []Verb{Read, Administer}, Administer, "requires role admin"}, // no verb gives what the role does not
		{admin, []Verb{Read, Administer}, Administer, ""},
		{admin, []Verb{Read, Administer}, Change, `lacks the verb "change"`},
		{admin, []Verb{Change}, Read, ""},
	} {
		err := May(Principal{Role: tt.role, User: "ann", Limits: api.Limits{Verbs: tt.verbs}}, tt.verb, "default")
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s with %v, %s: %v, want %q", tt.role, tt.verbs, tt.verb, err, tt.want)
		}
	}
}

func TestPatternsCoverWholeNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		patterns []string
		full     string
		want     bool
	}{
		{nil, "anything", true},
		{[]string{"ci-*"}, "ci-1", true},
		{[]string{"ci-*"}, "ci-", true},
		{[]string{"ci-*"}, "lab.ci-1", true},
		{[]string{"ci-*"}, "ci", false},
		{[]string{"ci-*"}, "my-ci-1", false},
		{[]string{"ci-*"}, "ci.x", false}, // the cluster x of the project ci
		{[]string{"a", "b"}, "b", true},
		{[]string{"a", "b"}, "ab", false},
		{[]string{"*-test"}, "nightly-test", true},
		{[]string{"a*b*c"}, "a-b-c", true},
		{[]string{"*"}, "lab.x", true},
	} {
		if got := Covers(Principal{Limits: api.Limits{Clusters: tt.patterns}}, tt.full); got != tt.want {
			t.Errorf("%v covers %q: %v, want %v", tt.patterns, tt.full, got, tt.want)
		}
	}
}

func TestVerbsAreStoredInOneOrderWithRead(t *testing.T) {
	t.Parallel()
	if got := NormalVerbs([]Verb{Change, Run, Run}); !slices.Equal(got, []Verb{Read, Run, Change}) {
		t.Errorf("got %v", got)
	}
	if got := NormalVerbs(nil); got != nil {
		t.Errorf("of none: %v, want none: all that the role allows", got)
	}
}
