package archtest

import (
	"go/ast"
	"go/token"
)

// checkSleeps reports each time.Sleep and each bare <-time.After in the file. Both are allowed in a function literal passed to synctest.Test,
// where time is pretended. Beside other cases of a select, <-time.After is a deadline for an event.
func checkSleeps(f *File, report reporter) {
	clock := f.localName("time")
	if clock == "" {
		return
	}
	var bubbles []*ast.FuncLit
	deadlines := map[ast.Node]bool{}
	bubbled := func(pos token.Pos) bool {
		for _, b := range bubbles {
			if b.Pos() <= pos && pos < b.End() {
				return true
			}
		}
		return false
	}
	// ast.Inspect meets a call before its arguments, and a select before its cases.
	ast.Inspect(f.Syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if bubble := f.localName("testing/synctest"); bubble != "" && isName(n.Fun, bubble, "Test") {
				for _, arg := range n.Args {
					if literal, ok := arg.(*ast.FuncLit); ok {
						bubbles = append(bubbles, literal)
					}
				}
			}
		case *ast.SelectStmt:
			for _, clause := range n.Body.List {
				deadlines[received(clause.(*ast.CommClause).Comm)] = len(n.Body.List) > 1
			}
		case *ast.SelectorExpr:
			if isName(n, clock, "Sleep") && !bubbled(n.Pos()) {
				report(f.Path, f.Line(n.Pos()), "time.Sleep in a test")
			}
		case *ast.UnaryExpr:
			call, ok := n.X.(*ast.CallExpr)
			if ok && n.Op == token.ARROW && isName(call.Fun, clock, "After") && !deadlines[n] && !bubbled(n.Pos()) {
				report(f.Path, f.Line(n.Pos()), "<-time.After in a test")
			}
		}
		return true
	})
}

// received returns the receive operation of a select's case, nil when it has none.
func received(comm ast.Stmt) ast.Node {
	switch comm := comm.(type) {
	case *ast.ExprStmt:
		return comm.X
	case *ast.AssignStmt:
		return comm.Rhs[0]
	}
	return nil
}

// isName reports whether an expression is pkg.name, pkg being the name under which the file knows the package.
func isName(x ast.Expr, pkg, name string) bool {
	sel, ok := x.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	id, ok := sel.X.(*ast.Ident)
	return ok && id.Name == pkg
}
