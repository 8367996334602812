package api

// HomeUsage is the amount of files in a cluster's shared home.
type HomeUsage struct {
	// Files counts everything but directories, Bytes sums up their sizes.
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
	// AtLeast reports that counting stopped at its limit: the home may hold more.
	AtLeast bool `json:"at_least,omitempty"`
}

// Empty reports whether the home holds no files at all.
func (u HomeUsage) Empty() bool { return u.Files == 0 && !u.AtLeast }
