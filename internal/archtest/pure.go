package archtest

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
)

// planner is source that computes and does nothing else.
type planner struct {
	// where is a folder.
	where string
	// mayImport are the packages of this module it may import.
	mayImport []string
}

var planners = []planner{
	{"internal/resource", []string{"./api"}},
	{"internal/pool", nil},
	{"internal/offer", []string{"./api"}},
	{"internal/placement", []string{"./api", "./internal/pool", "./internal/resource", "./internal/resource/device"}},
	{"internal/lifecycle", []string{"./api"}},
	{"internal/gpumeasure", []string{"./api"}},
	{"internal/usage", []string{"./api", "./internal/resource"}},
	{"internal/machine/compatibility", []string{"./api"}},
	{"internal/machine/cleaning/plan", nil},
	{"internal/volume/plan", []string{"./api", "./internal/resource", "./internal/volume"}},
	{"internal/dataset/plan", []string{"./api", "./internal/dataset"}},
	{"internal/dataset/predict", nil},
	{"internal/dataset/paths", []string{"./api", "./internal/dataset", "./internal/dataset/predict"}},
	{"internal/decision", []string{"./api", "./internal/lifecycle", "./internal/placement", "./internal/resource", "./internal/volume/plan"}},
	{"internal/admission", []string{"./api", "./internal/placement", "./internal/resource"}},
	{"internal/wayout", nil},
	{"internal/fabric/plan", []string{"./api", "./internal/fabric", "./internal/securitygroup", "./internal/wayout"}},
	{"internal/fabric/topology", []string{"./api"}},
	{"internal/packettrace", []string{"./internal/fabric", "./internal/securitygroup"}},
	{"internal/securitygroup", nil},
	{"internal/contextualization", []string{"./api", "./internal/driver", "./internal/member/memberconfig", "./internal/member/membercert", "./internal/sshca"}},
}

// isPlanner reports whether a file is of any planner.
func isPlanner(f *File) bool {
	return slices.ContainsFunc(planners, func(p planner) bool { return p.holds(f) })
}

// holds reports whether a file is of this planner.
func (p planner) holds(f *File) bool { return within(f.Dir, p.where) }

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
		if within(name, ".") && !within(name, "./"+f.Dir) && !slices.Contains(mayImport, name) {
			report(f.Path, line, "a planner imports %s; it may import only %s", name, strings.Join(mayImport, ", "))
		}
	}
	for _, i := range impurities(f) {
		report(f.Path, i.line, "a planner %s", i.what)
	}
}

// impurity is what of a file depends on more than its arguments.
type impurity struct {
	// pkg is the package that the file imports for it.
	pkg, what string
	line      int
}

// impurities returns all there are in a file.
func impurities(f *File) []impurity {
	var found []impurity
	for name, line := range f.Imports {
		if slices.Contains(impurePackages, name) || foreign(name) {
			found = append(found, impurity{name, "imports " + name, line})
		}
	}
	for name, line := range f.Uses("time") {
		if slices.Contains(clockNames, name) {
			found = append(found, impurity{"time", "uses time." + name + "; the time comes in as an argument", line})
		}
	}
	for name, line := range f.Uses("math/rand/v2") {
		if !slices.Contains(seededNames, name) {
			found = append(found, impurity{"math/rand/v2", "uses the unseeded rand." + name + "; a seeded *rand.Rand comes in as an argument", line})
		}
	}
	return found
}

// foreign reports whether an imported package is neither of the standard library nor of this module: its source is not read here.
func foreign(name string) bool {
	host, _, _ := strings.Cut(name, "/")
	return host != "." && strings.Contains(host, ".")
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
