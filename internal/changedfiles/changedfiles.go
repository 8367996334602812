// Package changedfiles says which of the files that a member changed in its root become an environment, and searches what was saved for keys.
//
// What Nearmetal wrote for one member is never saved, nor what makes a machine this machine, nor logs and files for a while. What users wrote is saved,
// but private keys among it only where they are named. The package reads archives and trees and changes neither. Start with CheckArchive.
package changedfiles

import "github.com/nearmetal/nearmetal/internal/changedfiles/choice"

// Use is what changed files are saved for (package choice).
type Use = choice.Use

// The uses of changed files.
const (
	ForEnvironment = choice.ForEnvironment
	ForMember      = choice.ForMember
)
