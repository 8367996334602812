package archtest

import (
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
)

// planner is source that computes and does nothing else.
type planner struct {
	// where is a folder, or a pattern of files (path.Match).
	where string
	// mayImport are the packages of this module it may import.
	mayImport []string
}

var planners = []planner{
	{"internal/placement", []string{"./api"}},
	{"internal/lifecycle", []string{"./api"}},
	{"internal/usage", []string{"./api"}},
	{"internal/compatibility", []string{"./api"}},
	{"internal/decision", []string{"./api", "./internal/lifecycle", "./internal/placement"}},
	{"internal/admission", []string{"./api", "./internal/placement"}},
	{"internal/wayout", nil},
	{"internal/fabric/*/plan.go", []string{"./api", "./internal/fabric", "./internal/wayout"}},
	{"internal/fabric/*/rules.go", []string{"./api", "./internal/fabric", "./internal/wayout"}},
	{"internal/contextualization", []string{"./api", "./internal/driver", "./internal/member/memberconfig", "./internal/sshca"}},
}

// holds reports whether a file is of this planner.
func (p planner) holds(f *File) bool {
	if path.Ext(p.where) != ".go" {
		return within(f.Dir, p.where)
	}
	ok, _ := path.Match(p.where, f.Path)
	return ok
}

// impurePackages of the standard library reach outside the process or depend on when and where it runs.
var impurePackages = []string{
	"crypto/rand", "database/sql", "embed", "io/ioutil", "log", "log/slog", "math/rand", "net", "net/http", "net/rpc", "os", "os/exec",
	"os/signal", "os/user", "plugin", "runtime", "runtime/debug", "sync", "sync/atomic", "syscall", "testing",
}

// clockNames of package time read the clock or wait for it.
var clockNames = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"}

// seededNames of package math/rand/v2 are its only names that need a seed.
var seededNames = []string{"New", "NewPCG", "NewChaCha8", "Rand", "Source", "PCG", "ChaCha8"}

// checkPure reports what makes a planner's result depend on more than its arguments.
func checkPure(f *File, mayImport []string, report reporter) {
	for name, line := range f.Imports {
		switch {
		case within(name, ".") && !within(name, "./"+f.Dir) && !slices.Contains(mayImport, name):
			report(f.Path, line, "a planner imports %s; it may import only %s", name, strings.Join(mayImport, ", "))
		case slices.Contains(impurePackages, name):
			report(f.Path, line, "a planner imports %s", name)
		}
	}
	for name, line := range f.Uses("time") {
		if slices.Contains(clockNames, name) {
			report(f.Path, line, "a planner uses time.%s; the time comes in as an argument", name)
		}
	}
	for name, line := range f.Uses("math/rand/v2") {
		if !slices.Contains(seededNames, name) {
			report(f.Path, line, "a planner uses the unseeded rand.%s; a seeded *rand.Rand comes in as an argument", name)
		}
	}
}

// checkFailpoints reports marks whose name is not a literal PACKAGE.after-WHAT or PACKAGE.before-WHAT, or is used twice.
func checkFailpoints(files []*File, report reporter) {
	seen := map[string]string{}
	for _, f := range files {
		if f.Test {
			continue
		}
		ast.Inspect(f.Syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !isFailpointHit(call) || len(call.Args) != 1 {
				return true
			}
			line := f.Line(call.Pos())
			name := ""
			if lit, ok := call.Args[0].(*ast.BasicLit); ok {
				name, _ = strconv.Unquote(lit.Value)
			}
			pkg, what, _ := strings.Cut(name, ".")
			switch {
			case pkg != f.Syntax.Name.Name || !strings.HasPrefix(what, "after-") && !strings.HasPrefix(what, "before-"):
				report(f.Path, line, "failpoint %q; write a literal %s.after-WHAT or %[2]s.before-WHAT", name, f.Syntax.Name.Name)
			case seen[name] != "":
				report(f.Path, line, "failpoint %q is already in %s", name, seen[name])
			}
			seen[name] = f.Path
			return true
		})
	}
}

// isFailpointHit reports whether a call is failpoint.Hit(...).
func isFailpointHit(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != "Hit" {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == "failpoint"
}
