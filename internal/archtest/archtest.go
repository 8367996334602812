// Package archtest keeps the architecture: rules over this module's source files, each with its reason.
//
// It reads source text only, so it needs neither a compiler nor the network and takes well under a second. It must never
// know a single file: an exception belongs in a rule, with its reason. Start with rules.go, the table of rules.
package archtest

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Module is the path of this module.
const Module = "github.com/nearmetal/nearmetal"

// File is one Go source file of the module.
type File struct {
	// Path is relative to the module's root, with slashes.
	Path string
	// Dir is the folder of Path: the import path without the module's.
	Dir    string
	Test   bool
	Lines  int
	Syntax *ast.File
	fset   *token.FileSet
}

// Line is the line of a position in the file.
func (f *File) Line(pos token.Pos) int { return f.fset.Position(pos).Line }

// Imports yields the paths the file imports with their lines; those of this module are relative to its root and begin with "./".
func (f *File) Imports(yield func(path string, line int) bool) {
	for _, spec := range f.Syntax.Imports {
		name := strings.Trim(spec.Path.Value, `"`)
		if rest, ok := strings.CutPrefix(name, Module); ok {
			name = "." + rest
		}
		if !yield(name, f.Line(spec.Pos())) {
			return
		}
	}
}

// Uses yields each mention of PACKAGE.NAME in the file, by the name the package was imported under.
func (f *File) Uses(pkg string) func(yield func(name string, line int) bool) {
	return func(yield func(string, int) bool) {
		local := f.localName(pkg)
		if local == "" {
			return
		}
		stop := false
		ast.Inspect(f.Syntax, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && !stop {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == local {
					stop = !yield(sel.Sel.Name, f.Line(sel.Pos()))
				}
			}
			return !stop
		})
	}
}

// localName is the name by which the file knows a standard package, "" when it does not import it.
func (f *File) localName(pkg string) string {
	for _, spec := range f.Syntax.Imports {
		if strings.Trim(spec.Path.Value, `"`) != pkg {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(strings.TrimSuffix(pkg, "/v2"))
	}
	return ""
}

// Violation is a place that breaks a rule.
type Violation struct {
	Path string
	// Line is 0 when the whole file or folder is meant.
	Line int
	What string
	Why  string
}

// String is the violation as a compiler would print it, with the rule's reason.
func (v Violation) String() string {
	return fmt.Sprintf("%s:%d: %s\n\twhy this rule: %s", v.Path, max(v.Line, 1), v.What, v.Why)
}

// Load reads every Go file of the module rooted at fsys, in path order. Folders that begin with a dot or underscore, testdata
// and node_modules are not read.
func Load(fsys fs.FS) ([]*File, error) {
	var files []*File
	fset := token.NewFileSet()
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch base := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.ContainsAny(base[:1], "._") || base == "testdata" || base == "node_modules"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, &File{
			Path: name, Dir: path.Dir(name), Test: strings.HasSuffix(name, "_test.go"),
			Lines: strings.Count(string(text), "\n"), Syntax: syntax, fset: fset,
		})
		return nil
	})
	return files, err
}

// Check returns every violation of the rules in these files, in path order.
func Check(files []*File) []Violation {
	var found []Violation
	for _, rule := range rules {
		report := func(path string, line int, what string, args ...any) {
			found = append(found, Violation{Path: path, Line: line, What: fmt.Sprintf(what, args...), Why: rule.why})
		}
		if rule.file != nil {
			for _, f := range files {
				rule.file(f, report)
			}
		}
		if rule.all != nil {
			rule.all(files, report)
		}
	}
	slices.SortStableFunc(found, func(a, b Violation) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), cmp.Compare(a.Line, b.Line))
	})
	return found
}
