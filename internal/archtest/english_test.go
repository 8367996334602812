package archtest

import (
	"fmt"
	"os"
	"testing"
	"testing/fstest"
)

func TestTextsForPeopleHaveNoPhraseOfTheTable(t *testing.T) {
	t.Parallel()
	files, err := Load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	checkEnglish(files, func(path string, line int, what string, args ...any) {
		t.Errorf("%s:%d: "+what, append([]any{path, line}, args...)...)
	})
}

func TestEachPhraseIsFoundWhereverATextHoldsIt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`errors.New("no room; who waits is first")`:            true,
		`fmt.Errorf("token %s is not one of who made it", x)`:  true,
		`log.Info("the agent is told to stop")`:                true,
		`fmt.Errorf("node %q as was told", x)`:                 true,
		`usage("mend it, then repeat")`:                        true,
		`usage("it would look " + "after itself")`:             true,
		`flags.Bool("x", false, "although members are lost")`:  true,
		`usage("leave %q away", x)`:                            true,
		`flags.Int("x", 0, "how long (default: for ever)")`:    true,
		`usage("give one of both")`:                            true,
		`usage("it shall not be")`:                             true,
		`Event{Message: "this node goes without a stack"}`:     true,
		`usage("off by hand, as reported")`:                    true,
		`usage("a page is no end of a session")`:               true,
		"`errors stand\non standard error`":                    true,
		`usage("'list' shows those there are")`:                true,
		`usage("on your word")`:                                true,
		`usage("it is done all the same")`:                     true,
		`usage("the build begins anew")`:                       true,
		`usage("take in machines")`:                            true,
		`usage("the enrolment token is unknown")`:              true,
		`usage("is there a way to it? there is no way to it")`: true,
		`errors.New("who may do this?")`:                       false, // a question names nobody yet
		`usage("the user who asks waits")`:                     false,
		`usage("--wait conflicts with --no-inspect")`:          false,
		`usage("forever")`:                                     false,
		`map[string]int{"shall": 1}`:                           false, // one word is a name, not a text
		`0 // told, and mended for ever`:                       false,
	} {
		source := "// Package x is for this test.\npackage x\n\nvar y = " + text + "\n"
		files, err := Load(fstest.MapFS{"go.mod": {Data: []byte("module " + Module)}, "internal/x/a.go": {Data: []byte(source)}})
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		checkEnglish(files, func(_ string, _ int, what string, args ...any) { found = append(found, fmt.Sprintf(what, args...)) })
		if (len(found) > 0) != want {
			t.Errorf("%s: found %q, want any: %t", text, found, want)
		}
	}
}
