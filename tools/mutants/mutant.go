package main

import (
	"fmt"
	"strings"
)

// Mutant is one guard, how it is removed, and the test that must notice.
type Mutant struct {
	// Guard says what is protected, for people.
	Guard string
	// File is the source file, relative to the module's root. Find occurs in it exactly once, and becomes Replace.
	File    string
	Find    string
	Replace string
	// Test is PACKAGE TESTNAME, such as "./internal/state TestADeposedLeaderWritesNothing".
	Test string
}

// Package is the first word of Test.
func (m Mutant) Package() string {
	pkg, _, _ := strings.Cut(m.Test, " ")
	return pkg
}

// TestName is the second word of Test.
func (m Mutant) TestName() string {
	_, name, _ := strings.Cut(m.Test, " ")
	return name
}

// apply returns the mutated text of the file.
func (m Mutant) apply(text string) (string, error) {
	switch n := strings.Count(text, m.Find); n {
	case 1:
		return strings.Replace(text, m.Find, m.Replace, 1), nil
	case 0:
		return "", fmt.Errorf("the text to find is not in %s any more; bring tools/mutants/guards*.go up to date", m.File)
	default:
		return "", fmt.Errorf("the text to find is %d times in %s; make it longer", n, m.File)
	}
}
