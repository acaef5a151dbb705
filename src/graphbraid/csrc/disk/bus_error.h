// A message for a bus error of a mapped file, before it ends the process.
#pragma once

namespace gb {

// From now on a read past the end of a mapped file prints the file's name to stderr, and then ends the
// process by SIGBUS as before. A handler that somebody else has set stays.
void explain_bus_errors();

}  // namespace gb
