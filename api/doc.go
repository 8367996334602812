// Package api holds the resource types that users, the control plane and the node agents share.
//
// The package imports nothing internal and does no I/O, so every other package may import it. Field names are the wire names of the HTTP
// API and of the stored records. Units end a name (memory_bytes), except for Memory in a shape, which people write as a quantity
// ("512MiB"). Start with cluster.go (a user's request), then assignment.go (the result of a decision).
package api
