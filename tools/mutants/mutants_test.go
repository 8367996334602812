package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module is a module whose double() has one guard, which TestNegative misses when it is gone and TestPositive doesn't.
var module = map[string]string{
	"go.mod": "module example.org/m\n\ngo 1.21\n",
	"m.go": `package m

import "syscall"

var _ = syscall.Exit

func double(n int) int {
	if n < 0 {
		return 0
	}
	return 2 * n
}
`,
	"m_test.go": `package m

import "testing"

func TestNegative(t *testing.T) {
	if double(-1) != 0 {
		t.Fatal("want 0")
	}
}

func TestPositive(t *testing.T) {
	if double(1) != 2 {
		t.Fatal("want 2")
	}
}

func TestSkipped(t *testing.T) { t.Skip("not here") }
`,
}

func TestAMutantIsJudgedByItsNamedTestAlone(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range module {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name string
		m    Mutant
		want Verdict
	}{
		{"the test notices", Mutant{Find: "n < 0", Replace: "false", Test: ". TestNegative"}, Killed},
		{"the test crashes", Mutant{Find: "return 0", Replace: "panic(n)", Test: ". TestNegative"}, Killed},
		{"the process ends in the test", Mutant{Find: "return 0", Replace: "syscall.Exit(3)", Test: ". TestNegative"}, Killed},
		{"the test does not notice", Mutant{Find: "n < 0", Replace: "false", Test: ". TestPositive"}, Survived},
		{"it does not compile", Mutant{Find: "n < 0", Replace: "n <", Test: ". TestNegative"}, Invalid},
		{"its text is gone", Mutant{Find: "n <= 0", Replace: "false", Test: ". TestNegative"}, Invalid},
		{"its text is there twice", Mutant{Find: "return", Replace: "", Test: ". TestNegative"}, Invalid},
		{"its test does not exist", Mutant{Find: "n < 0", Replace: "false", Test: ". TestNothing"}, Invalid},
		{"its test is skipped", Mutant{Find: "n < 0", Replace: "false", Test: ". TestSkipped"}, Invalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.m.File = "m.go"
			if got := (runner{root: root}).try(t.Context(), tt.m); got.Verdict != tt.want {
				t.Errorf("want %s, got %s: %s", tt.want, got.Verdict, got.Detail)
			}
		})
	}
}

func TestTheListOfGuardsMatchesTheSource(t *testing.T) {
	t.Parallel()
	for _, m := range guards() {
		text, err := os.ReadFile(filepath.Join("../..", m.File))
		if err != nil {
			t.Errorf("%s: %v", m.Guard, err)
			continue
		}
		if _, err := m.apply(string(text)); err != nil {
			t.Errorf("%s: %v", m.Guard, err)
		}
		if m.Guard == "" || len(strings.Fields(m.Test)) != 2 {
			t.Errorf("%q: want a guard for people and a test of the form PACKAGE TESTNAME, got %q", m.Guard, m.Test)
		} else if !declares(t, filepath.Join("../..", m.Package()), m.TestName()) {
			t.Errorf("%s: %s has no test %s; bring tools/mutants/guards*.go up to date", m.Guard, m.Package(), m.TestName())
		}
	}
}

// declares reports whether a test is declared in a folder.
func declares(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), "\nfunc "+test+"(")
	})
}
