package archtest

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestThisModuleKeepsEveryRule(t *testing.T) {
	t.Parallel()
	files, err := Load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("read only %d files; is ../.. the root of the module?", len(files))
	}
	for _, v := range Check(files) {
		t.Error(v)
	}
}

func TestEachRuleFindsWhatBreaksIt(t *testing.T) {
	t.Parallel()
	const doc = "// Package x is for this test.\n"
	const bubble = "package x\nimport (\n\"testing\"\n\"testing/synctest\"\n\"time\"\n)\nfunc f() { "
	tests := []struct {
		name, path, text string
		want             string // part of the violation's text, "" when there is none
	}{
		{"api importing internal", "api/a.go", doc + "package api\nimport _ \"" + Module + "/internal/store\"", "api imports ./internal/store"},
		{"a planner importing the store", "internal/placement/a.go", doc + "package placement\nimport _ \"" + Module + "/internal/store\"", "it may import only ./api"},
		{"a planner importing api", "internal/placement/a.go", doc + "package placement\nimport _ \"" + Module + "/api\"", ""},
		{"a planner reading files", "internal/lifecycle/a.go", doc + "package lifecycle\nimport _ \"os\"", "a planner imports os"},
		{"a planner reading the clock", "internal/lifecycle/a.go", doc + "package lifecycle\nimport \"time\"\nvar x = time.Now", "uses time.Now"},
		{"a planner computing with times", "internal/lifecycle/a.go", doc + "package lifecycle\nimport \"time\"\nvar x = time.Second", ""},
		{"a planner throwing dice", "internal/placement/a.go", doc + "package placement\nimport \"math/rand/v2\"\nvar x = rand.IntN", "unseeded rand.IntN"},
		{"a planner given seeded dice", "internal/placement/a.go", doc + "package placement\nimport \"math/rand/v2\"\nvar x *rand.Rand", ""},
		{"a fabric's planning doing I/O", "internal/fabric/plan/a.go", doc + "package plan\nimport _ \"net\"", "a planner imports net"},
		{"a driver reading the store", "internal/driver/container/a.go", doc + "package container\nimport _ \"" + Module + "/internal/store\"", "imports ./internal/store"},
		{"a fabric calling the API", "internal/fabric/node/a.go", doc + "package node\nimport _ \"" + Module + "/internal/apiserver\"", "imports ./internal/apiserver"},
		{"a boot that depends on placement", "internal/machine/boot/a.go", doc + "package boot\nimport _ \"" + Module + "/internal/placement\"", "the wing of machines imports ./internal/placement"},
		{"a boot that depends on its wing", "internal/machine/boot/a.go", doc + "package boot\nimport _ \"" + Module + "/internal/machine/netboot\"", ""},
		{"a boot's test that depends on placement", "internal/machine/boot/a_test.go", doc + "package boot\nimport _ \"" + Module + "/internal/placement\"", ""},
		{"an API server choosing its store", "internal/apiserver/a.go", doc + "package apiserver\nimport _ \"" + Module + "/internal/store/etcd\"", "imports the implementation ./internal/store/etcd"},
		{"a controller using a contract below another", "internal/controller/a.go", doc + "package controller\nimport _ \"" + Module + "/internal/fabric/site\"", ""},
		{"a controller choosing its fabric", "internal/controller/a.go", doc + "package controller\nimport _ \"" + Module + "/internal/fabric/node\"", "imports the implementation ./internal/fabric/node"},
		{"a server choosing its store", "internal/server/a.go", doc + "package server\nimport _ \"" + Module + "/internal/store/etcd\"", ""},
		{"an API server using the contract", "internal/apiserver/a.go", doc + "package apiserver\nimport _ \"" + Module + "/internal/store\"", ""},
		{"a library that exits", "internal/x/a.go", doc + "package x\nimport \"os\"\nfunc f() { os.Exit(1) }", "os.Exit outside cmd"},
		{"a library that exits under another name", "internal/x/a.go", doc + "package x\nimport sys \"os\"\nfunc f() { sys.Exit(1) }", "os.Exit outside cmd"},
		{"a library that logs and exits", "internal/x/a.go", doc + "package x\nimport \"log\"\nfunc f() { log.Fatalf(\"\") }", "log.Fatalf outside cmd"},
		{"a command that exits", "cmd/x/a.go", doc + "package main\nimport \"os\"\nfunc f() { os.Exit(1) }", ""},
		{"a package named util", "internal/util/a.go", doc + "package util", "package named util"},
		{"a package without a comment", "internal/x/a.go", "package x", "no package comment"},
		{"a test that sleeps", "internal/x/a_test.go", doc + "package x\nimport \"time\"\nfunc f() { time.Sleep(1) }", "time.Sleep in a test"},
		{"a conformance suite that sleeps", "internal/x/xtest/a.go", doc + "package xtest\nimport \"time\"\nfunc f() { time.Sleep(1) }", "time.Sleep in a test"},
		{"a test that waits for a timer alone", "internal/x/a_test.go", doc + "package x\nimport \"time\"\nfunc f() { <-time.After(1) }", "<-time.After in a test"},
		{"a test that waits for a timer alone in a select", "internal/x/a_test.go", doc + "package x\nimport \"time\"\nfunc f() { select { case <-time.After(1): } }", "<-time.After in a test"},
		{"a test that waits for an event with a deadline", "internal/x/a_test.go", doc + "package x\nimport \"time\"\nfunc f(c chan int) { select { case <-c: case <-time.After(1): } }", ""},
		{"a test that assigns from a timer beside an event", "internal/x/a_test.go", doc + "package x\nimport \"time\"\nfunc f(c chan int) { select { case <-c: case t := <-time.After(1): _ = t } }", ""},
		{"a test that waits for a timer after an event", "internal/x/a_test.go", doc + "package x\nimport \"time\"\nfunc f(c chan int) { select { case <-c: <-time.After(1); default: } }", "<-time.After in a test"},
		{"a test that sleeps in pretended time", "internal/x/a_test.go", doc + bubble + "synctest.Test(nil, func(*testing.T) { time.Sleep(1); go func() { <-time.After(1) }() }) }", ""},
		{"a test that sleeps before pretended time", "internal/x/a_test.go", doc + bubble + "time.Sleep(1); synctest.Test(nil, func(*testing.T) {}) }", "time.Sleep in a test"},
		{"a test that sleeps after pretended time", "internal/x/a_test.go", doc + bubble + "synctest.Test(nil, func(*testing.T) {}); <-time.After(1) }", "<-time.After in a test"},
		{"a test that sleeps in another package's Test", "internal/x/a_test.go", doc + "package x\nimport \"time\"\nfunc f() { other.Test(nil, func() { time.Sleep(1) }) }", "time.Sleep in a test"},
		{"a test that skips for itself", "internal/x/a_test.go", doc + "package x\nfunc f(t *testing.T) { t.Skipf(\"\") }", "Skipf in a test"},
		{"a conformance suite that skips for itself", "internal/x/xtest/a.go", doc + "package xtest\nimport \"testing\"\nfunc f(t testing.TB) { t.SkipNow() }", "SkipNow in a test"},
		{"a lexer that skips", "internal/x/a.go", doc + "package x\nfunc f(l lexer) { l.Skip() }", ""},
		{"a server that imports what serves tests", "internal/x/a.go", doc + "package x\nimport _ \"net/http/httptest\"", "net/http/httptest is imported outside tests"},
		{"a package for tests that imports it", "internal/x/xtest/a.go", doc + "package xtest\nimport _ \"net/http/httptest\"", ""},
		{"an init function", "internal/x/a.go", doc + "package x\nfunc init() {}", "func init"},
		{"a method named init", "internal/x/a.go", doc + "package x\ntype t int\nfunc (t) init() {}", ""},
		{"a long file", "internal/x/a.go", doc + "package x\n" + strings.Repeat("\n", maxFileLines), "lines; at most 500"},
		{"a long test", "internal/x/a_test.go", doc + "package x\n" + strings.Repeat("\n", maxFileLines), ""},
		{"a long function", "internal/x/a.go", doc + "package x\nfunc f() {\n" + strings.Repeat("\n", maxFunctionLines) + "}", "func f has 82 lines"},
		{"a computed failpoint", "internal/x/a.go", doc + "package x\nfunc f(s string) { failpoint.Hit(s) }", "write a literal x.after-WHAT"},
		{"a failpoint of another package", "internal/x/a.go", doc + "package x\nfunc f() { failpoint.Hit(\"y.after-z\") }", "write a literal x.after-WHAT"},
		{"one failpoint twice", "internal/x/a.go", doc + "package x\nfunc f() { failpoint.Hit(\"x.after-z\"); failpoint.Hit(\"x.after-z\") }", "is already in"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			files, err := Load(fstest.MapFS{tt.path: {Data: []byte(tt.text)}})
			if err != nil {
				t.Fatal(err)
			}
			got := Check(files)
			switch {
			case tt.want == "" && len(got) > 0:
				t.Errorf("want no violation, got %v", got)
			case tt.want != "" && len(got) != 1:
				t.Errorf("want one violation with %q, got %v", tt.want, got)
			case tt.want != "" && !strings.Contains(got[0].What, tt.want):
				t.Errorf("want a violation with %q, got %q", tt.want, got[0].What)
			}
		})
	}
}

func TestAPlannerIsPureInAllThatItImports(t *testing.T) {
	t.Parallel()
	planner := "// Package decision is for this test.\npackage decision\nimport _ \"" + Module + "/internal/fabric\""
	through := "// Package fabric is for this test.\npackage fabric\nimport _ \"" + Module + "/internal/deep\""
	deep := "// Package deep is for this test.\npackage deep\n"
	for _, tc := range []struct {
		name, deep string
		want       string // part of the violation about the planner, "" when there is none
	}{
		{"an import that reads files", deep + "import _ \"os\"", "imports ./internal/fabric, which imports ./internal/deep, which imports os in internal/deep/a.go"},
		{"an import that reads the clock", deep + "import \"time\"\nvar x = time.Now", "./internal/deep, which uses time.Now"},
		{"an import that throws dice", deep + "import \"math/rand/v2\"\nvar x = rand.IntN", "./internal/deep, which uses the unseeded rand.IntN"},
		{"an import from another module", deep + "import _ \"example.com/x\"", "./internal/deep, which imports example.com/x"},
		{"an import that imports back", deep + "import _ \"" + Module + "/internal/fabric\"", ""},
		{"an import that computes", deep + "import \"time\"\nvar x = time.Second", ""},
	} {
		files, err := Load(fstest.MapFS{
			"internal/decision/a.go": {Data: []byte(planner)}, "internal/fabric/a.go": {Data: []byte(through)},
			"internal/deep/a.go": {Data: []byte(tc.deep)}, "internal/deep/a_test.go": {Data: []byte("package deep\nimport _ \"net\"")},
		})
		if err != nil {
			t.Fatal(err)
		}
		said := ""
		for _, v := range Check(files) {
			if v.Path == "internal/decision/a.go" && strings.Contains(v.What, ", which ") {
				said += v.What
			}
		}
		if tc.want == "" && said != "" || !strings.Contains(said, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.name, said, tc.want)
		}
	}
}

func TestAnExceptionAllowsItsNamesOnlyAndOnlyWhileItIsNeeded(t *testing.T) {
	t.Parallel()
	const doc = "// Package x is for this test.\n"
	planner := doc + "package contextualization\nimport _ \"" + Module + "/internal/driver\""
	for _, tc := range []struct{ name, driver, want string }{
		{"the name it allows", doc + "package driver\nimport \"net\"\nvar x net.Conn", ""},
		{"another name", doc + "package driver\nimport \"net\"\nvar x net.Conn\nvar y = net.Dial", "which imports net in internal/driver/a.go"},
		{"none", doc + "package driver\n", "no planner needs the exception for net any more"},
	} {
		files, err := Load(fstest.MapFS{"internal/contextualization/a.go": {Data: []byte(planner)}, "internal/driver/a.go": {Data: []byte(tc.driver)}})
		if err != nil {
			t.Fatal(err)
		}
		said := ""
		for _, v := range Check(files) {
			said += v.What
		}
		if tc.want == "" && said != "" || !strings.Contains(said, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.name, said, tc.want)
		}
	}
}
