package api

import "time"

// NamedShape is a shape that an administrator has given a name, for users to ask for.
type NamedShape struct {
	Name string `json:"name"`
	ShapeSettings
	UpdatedAt time.Time `json:"updated_at"`
}

// ShapeSettings is the body that sets a named shape: all of it.
type ShapeSettings struct {
	// Description is for people.
	Description string `json:"description,omitempty"`
	// Cores and Memory are the amounts for each member.
	Cores  int   `json:"cores"`
	Memory Bytes `json:"memory"`
	// Disk is the size of the private disk of members whose environment is the disk of another system; others have none.
	Disk Bytes `json:"disk,omitempty"`
}
