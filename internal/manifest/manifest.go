// Package manifest reads what a user asks for, a file or the body of a request, and normalizes it: strictly, with every
// problem found at once, each with its place and what to do.
//
// It is pure: bytes in, values out. It must never look at what exists (nodes, environments, other clusters); that is the
// API server's and placement's business. Start with Decode and Normalize.
package manifest
