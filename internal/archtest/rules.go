package archtest

import (
	"go/ast"
	"path"
	"slices"
	"strings"
)

// reporter takes one violation; line 0 means the whole file or folder.
type reporter func(path string, line int, what string, args ...any)

// rule is one rule with its reason. It looks at each file, or at all files together.
type rule struct {
	why  string
	file func(f *File, report reporter)
	all  func(files []*File, report reporter)
}

const (
	maxFileLines     = 500
	maxFunctionLines = 80
)

// contracts have their implementations in folders below their own. A topology belongs to the contract of sites: it is what their surveys return.
var contracts = []string{
	"internal/store", "internal/driver", "internal/fabric", "internal/fabric/site", "internal/fabric/topology", "internal/machine/power", "internal/machine/netboot",
	"internal/volume",
}

// wirers may import implementations.
var wirers = []string{"internal/server", "internal/agent", "internal/sim", "cmd", "tests", "tools"}

// wing is the folder of what is about machines alone; besides its own folders it may import wingImports.
const wing = "internal/machine"

var wingImports = []string{
	"./api", "./internal/accounts", "./internal/archive", "./internal/children", "./internal/generatedfiles", "./internal/image", "./internal/inventory", "./internal/lifecycle", "./internal/loadercache", "./internal/needs", "./internal/pool",
	"./internal/state", "./internal/trust", "./internal/virtioport",
}

var rules = []rule{
	{
		why: "api is what clients import; whatever it imports becomes part of every client",
		file: func(f *File, report reporter) {
			if within(f.Dir, "api") && !f.Test {
				for name, line := range f.Imports {
					if within(name, "./internal") || within(name, "./cmd") {
						report(f.Path, line, "api imports %s", name)
					}
				}
			}
		},
	},
	{
		why: "planners are simulated thousands of times a second and replayed: they see the world only through their arguments, " +
			"so that the same inputs give the same plan",
		file: func(f *File, report reporter) {
			for _, p := range planners {
				if p.holds(f) && !f.Test {
					checkPure(f, p.mayImport, report)
				}
			}
		},
		all: checkReach,
	},
	{
		why: "executors carry out what is desired; if they could read the store they would start to decide",
		file: func(f *File, report reporter) {
			if !slices.ContainsFunc(contracts, func(c string) bool { return c != "internal/store" && within(f.Dir, c) }) {
				return
			}
			for name, line := range f.Imports {
				if within(name, "./internal/store") || within(name, "./internal/apiserver") {
					report(f.Path, line, "%s imports %s", f.Dir, name)
				}
			}
		},
	},
	{
		why: "the wing of machines is about them alone: what it takes from clusters, members or the controller would tie a boot to them",
		file: func(f *File, report reporter) {
			if !within(f.Dir, wing) || f.Test {
				return
			}
			for name, line := range f.Imports {
				if within(name, ".") && !within(name, "./"+wing) && !slices.Contains(wingImports, name) {
					report(f.Path, line, "the wing of machines imports %s; it may import only %s", name, strings.Join(wingImports, ", "))
				}
			}
		},
	},
	{
		why: "only server, agent and cmd choose implementations; everyone else uses the contract and works with any of them",
		file: func(f *File, report reporter) {
			if f.Test || slices.ContainsFunc(wirers, func(w string) bool { return within(f.Dir, w) }) {
				return
			}
			for name, line := range f.Imports {
				if c := contractOf(name); c != "" && !within(f.Dir, c) {
					report(f.Path, line, "%s imports the implementation %s", f.Dir, name)
				}
			}
		},
	},
	{
		why: "a library that ends the process skips every deferred clean-up and can't be tested; return an error",
		file: func(f *File, report reporter) {
			if f.Test || within(f.Dir, "cmd") || f.Syntax.Name.Name == "main" {
				return
			}
			for name, line := range f.Uses("os") {
				if name == "Exit" {
					report(f.Path, line, "os.Exit outside cmd")
				}
			}
			for name, line := range f.Uses("log") {
				if strings.HasPrefix(name, "Fatal") || strings.HasPrefix(name, "Panic") {
					report(f.Path, line, "log.%s outside cmd", name)
				}
			}
		},
	},
	{
		why: "a package is named for the one concept it holds; these names hold anything",
		all: func(files []*File, report reporter) {
			banned := []string{"util", "utils", "common", "helper", "helpers", "structs", "misc", "shared", "base", "types"}
			for dir, members := range byDir(files) {
				if slices.Contains(banned, path.Base(dir)) || slices.Contains(banned, members[0].Syntax.Name.Name) {
					report(dir, 0, "package named %s", path.Base(dir))
				}
			}
		},
	},
	{
		why: "a reader opening the folder needs to know what it is for, what it must never do and where to start",
		all: func(files []*File, report reporter) {
			for dir, members := range byDir(files) {
				if !slices.ContainsFunc(members, func(f *File) bool { return f.Syntax.Doc != nil }) {
					report(dir, 0, "package %s has no package comment", members[0].Syntax.Name.Name)
				}
			}
		},
	},
	{
		why: "a test that sleeps is slow on a fast machine and fails on a slow one; wait for the event, or pretend the time with " +
			"testing/synctest",
		file: func(f *File, report reporter) {
			if f.Test || strings.HasSuffix(f.Dir, "test") {
				checkSleeps(f, report)
			}
		},
	},
	{
		why: "a test that skips for itself skips in CI too, where nobody reads that it did; say what it needs with internal/needs",
		file: func(f *File, report reporter) {
			tests := f.Test
			for name := range f.Imports {
				tests = tests || name == "testing"
			}
			if !tests || f.Dir == "internal/needs" {
				return
			}
			ast.Inspect(f.Syntax, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) {
					report(f.Path, f.Line(s.Pos()), "%s in a test", s.Sel.Name)
				}
				return true
			})
		},
	},
	{
		why: "what serves tests has no place in the binary: it is not made for hostile input, and brings the flags of go test along",
		file: func(f *File, report reporter) {
			if f.Test || strings.HasSuffix(f.Dir, "test") || within(f.Dir, "tests") || within(f.Dir, "tools") || within(f.Dir, "testbed") ||
				within(f.Dir, "internal/sim") || within(f.Dir, "internal/needs") {
				return
			}
			for name, line := range f.Imports {
				if within(name, "net/http/httptest") || within(name, "testing") {
					report(f.Path, line, "%s is imported outside tests", name)
				}
			}
		},
	},
	{
		why: "init runs in every program that imports the package, in an order nobody reads; make a constructor",
		file: func(f *File, report reporter) {
			for fn := range functions(f) {
				if fn.Recv == nil && fn.Name.Name == "init" {
					report(f.Path, f.Line(fn.Pos()), "func init")
				}
			}
		},
	},
	{
		why: "a long file holds more than one concept, a long function decides and does; split them by what they hold",
		file: func(f *File, report reporter) {
			if f.Test {
				return
			}
			if f.Lines > maxFileLines && !ast.IsGenerated(f.Syntax) {
				report(f.Path, 0, "%d lines; at most %d", f.Lines, maxFileLines)
			}
			for fn := range functions(f) {
				if n := f.Line(fn.End()) - f.Line(fn.Pos()) + 1; n > maxFunctionLines {
					report(f.Path, f.Line(fn.Pos()), "func %s has %d lines; at most %d", fn.Name.Name, n, maxFunctionLines)
				}
			}
		},
	},
	{
		why: "tests crash the process at each mark in turn and find the marks by reading the source",
		all: checkFailpoints,
	},
}

// within reports whether dir is root or below it.
func within(dir, root string) bool { return dir == root || strings.HasPrefix(dir, root+"/") }

// contractOf returns the contract an imported package implements, "" when it is no implementation. A conformance suite is part
// of the contract, and a planner implements none.
func contractOf(name string) string {
	if slices.ContainsFunc(contracts, func(c string) bool { return name == "./"+c }) || slices.ContainsFunc(planners, func(p planner) bool { return name == "./"+p.where }) {
		return ""
	}
	for _, c := range contracts {
		if within(name, "./"+c) && !strings.HasSuffix(name, "test") {
			return c
		}
	}
	return ""
}

// byDir groups files by folder.
func byDir(files []*File) map[string][]*File {
	dirs := map[string][]*File{}
	for _, f := range files {
		dirs[f.Dir] = append(dirs[f.Dir], f)
	}
	return dirs
}

// functions yields the functions and methods declared in a file.
func functions(f *File) func(yield func(*ast.FuncDecl) bool) {
	return func(yield func(*ast.FuncDecl) bool) {
		for _, decl := range f.Syntax.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && !yield(fn) {
				return
			}
		}
	}
}
