package api

import "fmt"

// Problem is the body of every error the API answers with (application/problem+json, RFC 9457).
type Problem struct {
	// Type identifies the kind of problem: "urn:nearmetal:problem:" and Code.
	Type string `json:"type"`
	// Title is the meaning of Code in a few words, Status the HTTP status.
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Code is stable and for programs; docs/api-errors.md lists all of them.
	Code string `json:"code"`
	// Detail states the problem, its place, and the remedy.
	Detail string `json:"detail"`
	// Errors list every single problem of an invalid request.
	Errors []FieldProblem `json:"errors,omitempty"`
}

// FieldProblem is a problem with one field of a request.
type FieldProblem struct {
	// Location is the path of the field: "groups[1].cores", or "query.after" for a parameter of the request.
	Location string `json:"location,omitempty"`
	// Line of the request's body, 1 for the first; 0 when it is not of the body.
	Line int `json:"line,omitempty"`
	// Column of the line, 1 for the first character; 0 when it is not known.
	Column int `json:"column,omitempty"`
	// Value is the given value, as text.
	Value string `json:"value,omitempty"`
	// Message states the problem and the remedy.
	Message string `json:"message"`
}

// String is the problem on one line.
func (p FieldProblem) String() string {
	text := p.Message
	if p.Location != "" {
		text = p.Location + ": " + text
	}
	switch {
	case p.Line > 0 && p.Column > 0:
		text = fmt.Sprintf("line %d, column %d: %s", p.Line, p.Column, text)
	case p.Line > 0:
		text = fmt.Sprintf("line %d: %s", p.Line, text)
	}
	return text
}

// Error makes a Problem an error.
func (p *Problem) Error() string { return p.Detail }

// Version is a program's description of its build.
type Version struct {
	Version string `json:"version"`
	// Go is the version of the Go toolchain that built it, Platform the operating system and architecture.
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// List is the body of an answer that lists things.
type List[T any] struct {
	Items []T `json:"items"`
}
