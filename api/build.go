package api

import (
	"strconv"
	"time"
)

// BuildPhase is a phase in the life of a build.
type BuildPhase string

// The phases of a build.
const (
	BuildPending   BuildPhase = "pending" // waits for a builder node
	BuildRunning   BuildPhase = "running"
	BuildSucceeded BuildPhase = "succeeded"
	BuildFailed    BuildPhase = "failed"
	BuildCancelled BuildPhase = "cancelled"
)

// Ended reports whether the phase is final.
func (p BuildPhase) Ended() bool {
	return p == BuildSucceeded || p == BuildFailed || p == BuildCancelled
}

// Build is the stored record of one build of an environment.
type Build struct {
	ID          string `json:"id"`
	Environment string `json:"environment"`
	// Recipe is the text as given, in YAML; RecipeDigest that of its normal form with the digests of all it takes in: two builds with the
	// same one make the same image.
	Recipe       string `json:"recipe"`
	RecipeDigest string `json:"recipe_digest"`
	// Project owns the environment that is made of a cluster's files, which replaces none; "": the site owns it.
	Project string `json:"project,omitempty"`
	// Saved is the cluster that the files are of; nil: it is made of no cluster's files.
	Saved *SavedCluster `json:"saved,omitempty"`
	// Bases are the images that the recipe stands on (recipe.Needs), by environment: the digests their names stand for now, or those that the request named.
	Bases map[string]string `json:"bases,omitempty"`
	// Force: it is built although there is an image of the same recipe.
	Force bool `json:"force,omitempty"`
	// Verify: two different nodes build it, and it succeeds if they arrive at the same image. They need not be trusted builders.
	Verify  bool       `json:"verify,omitempty"`
	Phase   BuildPhase `json:"phase"`
	Message string     `json:"message,omitempty"`
	// Node is the builder node it was given to, since Attempt.
	Node    string `json:"node,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	// Built are the nodes that have built it, the first one first.
	Built []BuiltBy `json:"built,omitempty"`
	// Step is the present step and, after a colon, its progress where that is known. Percent is the progress of the whole build, 0 to 100.
	Step    string `json:"step,omitempty"`
	Percent int    `json:"percent"`
	// Digest is of the image's manifest, once it succeeded. Reused: an image of the same recipe was there, nothing was built.
	Digest          string     `json:"digest,omitempty"`
	Reused          bool       `json:"reused,omitempty"`
	CancelRequested bool       `json:"cancel_requested,omitempty"`
	CreatedAt       time.Time  `json:"created_at"`
	StartedAt       *time.Time `json:"started_at,omitempty"`
	EndedAt         *time.Time `json:"ended_at,omitempty"`
	By              string     `json:"by,omitempty"`
	LogBytes        int64      `json:"log_bytes"`
}

// RunID names the output of the attempt that goes on, or went on last.
func (b *Build) RunID() string { return "build." + b.ID + "." + strconv.Itoa(b.Attempt) }

// BuiltBy is the result of a recipe's build on one node.
type BuiltBy struct {
	Node string `json:"node"`
	// Identity is the ID of the identity that the node had.
	Identity string `json:"identity,omitempty"`
	// Trusted: the node was a trusted builder when it had built.
	Trusted bool `json:"trusted,omitempty"`
	// Digest is of the image's manifest.
	Digest string    `json:"digest"`
	At     time.Time `json:"at"`
}

// SameNode reports whether both were made by one node: of one name, or with one identity.
func (b *BuiltBy) SameNode(other *BuiltBy) bool {
	return b.Node == other.Node || b.Identity != "" && b.Identity == other.Identity
}

// BuildRequest is the body that asks for a build.
type BuildRequest struct {
	// Recipe is the YAML text, or Shipped the name of a recipe that comes with the product; one of both.
	Recipe  string `json:"recipe,omitempty"`
	Shipped string `json:"shipped,omitempty"`
	// Force builds although there is an image of the same recipe.
	Force bool `json:"force,omitempty"`
	// Verify has two different nodes build it, which must arrive at the same image.
	Verify bool `json:"verify,omitempty"`
}

// SaveFilesRequest is the body that asks for an environment of the files that a member changed in its root.
type SaveFilesRequest struct {
	// Environment is the name of the environment to make.
	Environment string `json:"environment"`
	// Member is the member whose files are saved; "": the first one by rank.
	Member string `json:"member,omitempty"`
	// KeepKeys are absolute paths of private keys that are saved on purpose.
	KeepKeys []string `json:"keep_keys,omitempty"`
	// NoHome leaves the home out: no snapshot of its volume is made.
	NoHome bool `json:"no_home,omitempty"`
}

// SavedCluster is what a cluster was when files of a member became an environment: what a restore makes another one of.
type SavedCluster struct {
	// Cluster is its name within its project, and Member the member whose files were saved.
	Cluster string `json:"cluster"`
	Member  string `json:"member"`
	// Groups are its groups. Those of whole machines that had the environment of the member have the new one.
	Groups []Group `json:"groups"`
	// Home is the snapshot of its home, VOLUME@SNAPSHOT; "": its home is no volume that outlives it, or was left out.
	Home string `json:"home,omitempty"`
	// SavedAt is when the files had been read.
	SavedAt time.Time `json:"saved_at"`
}

// Image is a built environment; stored under its digest. Environment names point at one (EnvironmentRecord).
type Image struct {
	// Digest is sha256:HEX of the manifest, which names everything else by digest.
	Digest       string       `json:"digest"`
	Environment  string       `json:"environment"`
	Description  string       `json:"description,omitempty"`
	RecipeDigest string       `json:"recipe_digest"`
	Architecture string       `json:"architecture"`
	Stacks       []Stack      `json:"stacks"`
	Requirements Requirements `json:"requirements"`
	// Services are what clusters set up in members that have it.
	Services []Service `json:"services,omitempty"`
	// RootBytes is the size of the root's image, RootUnpackedBytes of the files in it, MetalBytes of kernel and initrd.
	RootBytes         int64  `json:"root_bytes"`
	RootUnpackedBytes int64  `json:"root_unpacked_bytes"`
	MetalBytes        int64  `json:"metal_bytes,omitempty"`
	KernelVersion     string `json:"kernel_version,omitempty"`
	// Drivers are the kernel's modules for PCI devices and all that is built into the kernel, by name, sorted; empty: they are not known.
	Drivers []string `json:"drivers,omitempty"`
	// Disk is set for the disk of another system; RootBytes is then the size of its file.
	Disk    *ForeignDisk `json:"disk,omitempty"`
	BuiltAt time.Time    `json:"built_at"`
	BuildID string       `json:"build_id"`
	// Bases are the images that it was built on, by environment. BuiltBy are all nodes that have built it, the first one first.
	Bases   map[string]string `json:"bases,omitempty"`
	BuiltBy []BuiltBy         `json:"built_by,omitempty"`
}

// Verified reports whether two different nodes arrived at the image.
func (i *Image) Verified() bool {
	for n := range i.BuiltBy {
		for m := range i.BuiltBy[:n] {
			if one, other := &i.BuiltBy[n], &i.BuiltBy[m]; one.Digest == i.Digest && other.Digest == i.Digest && !one.SameNode(other) {
				return true
			}
		}
	}
	return false
}

// Vouched reports whether the site signs the image: a trusted builder built it, or it is verified.
func (i *Image) Vouched() bool {
	for n := range i.BuiltBy {
		if by := &i.BuiltBy[n]; by.Trusted && by.Digest == i.Digest {
			return true
		}
	}
	return i.Verified()
}

// EnvironmentRecord is the stored record of the image that an environment's name stands for.
type EnvironmentRecord struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	// Project owns the environment: others don't see it. "": it is the site's.
	Project string `json:"project,omitempty"`
	// Saved is the cluster that it is made of; nil: it is not.
	Saved *SavedCluster `json:"saved,omitempty"`
	// Recipe is the text it was last built from.
	Recipe    string    `json:"recipe"`
	UpdatedAt time.Time `json:"updated_at"`
}
