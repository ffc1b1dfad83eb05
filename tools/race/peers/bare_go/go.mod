// The parser of the bare loop.
module bare_go

go 1.24.0

require golang.org/x/net v0.47.0
