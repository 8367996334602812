// Package api holds the resource types that users, the control plane and the node agents share.
//
// It imports nothing internal and does no I/O: everything else may import it. Field names are the wire names of the HTTP
// API and of the stored records; units end a name (memory_bytes), except Memory in a shape, which people write as a quantity
// ("512MiB"). Start with cluster.go (what a user asks for), then assignment.go (what a decision hands out).
package api
