package lifecycle

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestTheListsHoldEachTypeOfOperation(t *testing.T) {
	t.Parallel()
	for method, listed := range map[string][]string{
		"clusterOperation":    typesOf(ClusterOperations()),
		"quarantineOperation": typesOf(QuarantineOperations()),
		"machineOperation":    typesOf(MachineOperations()),
		"memberOperation":     typesOf(MemberOperations()),
	} {
		slices.Sort(listed)
		if declared := receiversOf(t, method); !slices.Equal(listed, declared) || len(declared) == 0 {
			t.Errorf("these types have the method %s: %v; operationlist.go lists %v", method, declared, listed)
		}
	}
}

func typesOf[T any](ops []T) []string {
	var names []string
	for _, op := range ops {
		names = append(names, strings.TrimPrefix(fmt.Sprintf("%T", op), "lifecycle."))
	}
	return names
}

// receiversOf returns the types of this package that declare a method, sorted.
func receiversOf(t *testing.T, method string) []string {
	t.Helper()
	files, err := fs.Glob(os.DirFS("."), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == method {
				names = append(names, f.Recv.List[0].Type.(*ast.Ident).Name)
			}
		}
	}
	slices.Sort(names)
	return names
}
